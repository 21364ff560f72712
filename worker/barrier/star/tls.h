// TLS on a connection of the star barrier: protects the ranks' data against reading and changes on the
// network. TLS 1.3 with the epoch's secret as pre-shared key and an ephemeral key exchange (RFC 8446,
// psk_dhe_ke): no certificates, and a secret that leaks later does not decrypt recorded traffic. The only
// cipher is ChaCha20-Poly1305, whose keys need no renewal in an epoch of any length. TLS starts after the
// handshake of join_proof.h, when both ends are already authenticated by the same secret. Threads: the
// connection's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/barrier/star/join_proof.h"

struct ssl_st;

namespace bfio::worker {

enum class TlsEnd { kJoiner, kAcceptor };

class TlsSession {
 public:
  // `fd` is a non-blocking socket, not owned, which must outlive the session. INTERNAL: OpenSSL fails.
  static absl::StatusOr<std::unique_ptr<TlsSession>> Create(int fd, TlsEnd end, const Secret& secret);

  // Continues the handshake as far as possible. Returns the poll events that it waits for, 0 when it is done;
  // UNAVAILABLE when the peer is gone, does not speak TLS or has another secret.
  absl::StatusOr<short> Handshake();

  // As Connection's. A caller that has read a whole message has read everything that this session took from
  // the socket, so poll reports whether there is more: each write is a separate record, and records are read
  // one at a time. A write that returned 0 must be repeated with the same bytes before any other.
  std::optional<size_t> ReadSome(absl::Span<uint8_t> into);
  std::optional<size_t> SendSome(absl::Span<const uint8_t> bytes);

 private:
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };

  TlsSession(const Secret& secret, TlsEnd end) : secret_(secret), end_(end) {}
  // OpenSSL's callbacks get only ssl_ and find this object through it.
  friend struct TlsCallbacks;
  // Interprets the result of an SSL call. Absent: the peer is gone; 0: try again later.
  std::optional<size_t> SizeOf(int result) const;

  const Secret secret_;
  const TlsEnd end_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
};

}  // namespace bfio::worker
