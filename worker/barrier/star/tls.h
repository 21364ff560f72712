// TLS on a connection of the star barrier: nobody on the path can read or change what ranks exchange.
//
// TLS 1.3 with the epoch's secret as its pre-shared key and an ephemeral key exchange (RFC 8446, psk_dhe_ke):
// no certificates, and a secret that leaks later opens no recording. The only cipher is ChaCha20-Poly1305,
// whose keys need no renewal however long an epoch lasts. It begins where join_proof.h ends: both ends are
// authenticated already, and by the same secret.
//
// Threads: as the connection's.
#ifndef BFIO_WORKER_BARRIER_STAR_TLS_H_
#define BFIO_WORKER_BARRIER_STAR_TLS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/barrier/star/join_proof.h"

struct ssl_st;

namespace bfio::worker {

enum class TlsEnd { kJoiner, kAcceptor };

class TlsSession {
 public:
  // On a non-blocking socket, which it does not own and which must live as long. INTERNAL: OpenSSL refuses.
  static absl::StatusOr<std::unique_ptr<TlsSession>> Create(int fd, TlsEnd end, const Secret& secret);

  // Goes as far as it can. The poll events that it waits for, 0 when it is done; UNAVAILABLE when the peer is
  // gone, does not speak TLS or has another secret.
  absl::StatusOr<short> Handshake();

  // As Connection's. Whoever has read a whole message has read all that this session took from the socket, so
  // poll says when there is more: each write is a record of its own, and a record is taken when it is asked
  // for. A write that gave 0 must be repeated with the same bytes before any other.
  std::optional<size_t> ReadSome(absl::Span<uint8_t> into);
  std::optional<size_t> SendSome(absl::Span<const uint8_t> bytes);

 private:
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };

  TlsSession(const Secret& secret, TlsEnd end) : secret_(secret), end_(end) {}
  // What OpenSSL's callbacks, which get the ssl_st alone, find this object by.
  friend struct TlsCallbacks;
  // Nothing: the peer is gone; 0: not now.
  std::optional<size_t> SizeOf(int result) const;

  const Secret secret_;
  const TlsEnd end_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_TLS_H_
