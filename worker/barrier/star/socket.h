// Sockets of the star barrier: owned descriptors, listening, connecting, fixed-size messages. Errors are
// statuses; nothing throws. Threads: each object belongs to one thread, except that any thread may call
// Signal::Set. All sockets are non-blocking and waited for with poll, so that every wait has a deadline and
// can be interrupted.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/waker.h"
#include "worker/barrier/star/tls.h"
#include "worker/barrier/star/wire.h"

namespace bfio::worker {

// Monotonic clock, in nanoseconds.
inline int64_t MonotonicNs() {
  return absl::ToUnixNanos(MonotonicNow());
}

// Fills `bytes` from the operating system's random generator. UNAVAILABLE when that fails.
absl::Status FillRandom(absl::Span<uint8_t> bytes);

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// A flag that poll can wait for. Once set it stays set.
class Signal {
 public:
  void Set() { waker_.Wake(); }
  bool IsSet() const;
  int fd() const { return waker_.fd(); }

 private:
  Waker waker_;
};

// One connection; reads messages of a size that the caller gives.
class Connection {
 public:
  enum class Read { kMessage, kPartial, kClosed };
  static constexpr size_t kMostBytes = kHandshakeBytes + sizeof(Proof);

  Connection() = default;
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}

  // From now on all bytes go through `session`, which uses this connection's descriptor.
  void Encrypt(std::unique_ptr<TlsSession> session) { tls_ = std::move(session); }

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close() { fd_.Close(); }

  // Reads what has arrived. kMessage: `size` bytes are in message(), valid until the next call. REQUIRES:
  // size <= kMostBytes, and the same size in all calls until a message is complete.
  Read ReadMessage(size_t size);
  absl::Span<const uint8_t> message() const { return {buffer_.data(), last_}; }

  // False when the peer is gone or its buffer is full. A message is far smaller than a socket buffer and at
  // most two are in flight, so a full buffer means a misbehaving peer.
  bool Send(absl::Span<const uint8_t> bytes);

  // Reads a part of a message of any size; returns the bytes read. Absent: the peer is gone.
  std::optional<size_t> ReadSome(absl::Span<uint8_t> into);
  std::optional<size_t> SendSome(absl::Span<const uint8_t> bytes);

 private:
  Fd fd_;
  std::array<uint8_t, kMostBytes> buffer_;
  size_t have_ = 0;
  size_t last_ = 0;
  std::unique_ptr<TlsSession> tls_;
};

// Listens on `host`, at a port that the kernel picks and `port` receives. If the host's address is not one of
// this machine's, as behind a NAT, listens on all interfaces.
absl::StatusOr<Fd> Listen(const std::string& host, uint16_t* port);

struct Accepted {
  Fd fd;
  // Of its peer (AccountOf).
  std::string account;
};
// Accepts one waiting connection; the descriptor is invalid when there is none.
Accepted Accept(const Fd& listener);

// Connects before `deadline_ns`, which is divided among the host's addresses. The caller retries an address
// that does not answer, sooner than the kernel would. CANCELLED: `interrupt` is set; UNAVAILABLE: no process
// listens there; DEADLINE_EXCEEDED: also when the lookup of the host's name takes too long.
absl::StatusOr<Fd> Connect(const Address& address, int64_t deadline_ns, const Signal& interrupt);

// Waits until a descriptor in `fds` is ready (true) or the deadline has passed (false).
bool Poll(absl::Span<pollfd> fds, int64_t deadline_ns);

}  // namespace bfio::worker
