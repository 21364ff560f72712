// Sockets of the star barrier: owned descriptors, listening, connecting, fixed-size messages.
//
// Errors are statuses; nothing throws. Threads: each object belongs to one thread, except Signal::Set (any
// thread). All sockets are non-blocking and waited for with poll, so that every wait has a deadline and can
// be interrupted.
#ifndef BFIO_WORKER_BARRIER_STAR_SOCKET_H_
#define BFIO_WORKER_BARRIER_STAR_SOCKET_H_

#include <poll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/barrier/star/tls.h"
#include "worker/barrier/star/wire.h"

namespace bfio::worker {

// Nanoseconds of the monotonic clock.
int64_t MonotonicNs();

// Fills it from the operating system's generator. UNAVAILABLE when that gives nothing.
absl::Status FillRandom(absl::Span<uint8_t> bytes);

// An owned file descriptor.
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
  Signal();
  void Set();
  bool IsSet() const;
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

// One connection; reads messages of a size the caller names.
class Connection {
 public:
  enum class Read { kMessage, kPartial, kClosed };
  static constexpr size_t kMostBytes = kHandshakeBytes + sizeof(Proof);

  Connection() = default;
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}

  // From here on all bytes go through `session`, which is of this connection's descriptor.
  void Encrypt(std::unique_ptr<TlsSession> session) { tls_ = std::move(session); }

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close() { fd_.Close(); }

  // Takes what has arrived. kMessage: `size` bytes are in message(), valid until the next call.
  // REQUIRES: size <= kMostBytes, and the same size until a message is complete.
  Read ReadMessage(size_t size);
  absl::Span<const uint8_t> message() const { return {buffer_.data(), last_}; }

  // False when the peer is gone or takes nothing more: a message is far smaller than a socket buffer, and at
  // most two are ever under way, so a full buffer means a peer that is not one of ours.
  bool Send(absl::Span<const uint8_t> bytes);

  // Of a message of any size, a part at a time. Nothing: the peer is gone.
  std::optional<size_t> ReadSome(absl::Span<uint8_t> into);
  std::optional<size_t> SendSome(absl::Span<const uint8_t> bytes);
  // Between the parts of such a message nothing else may be sent.
  void set_mid_message(bool mid_message) { mid_message_ = mid_message; }
  bool mid_message() const { return mid_message_; }

 private:
  Fd fd_;
  std::array<uint8_t, kMostBytes> buffer_;
  size_t have_ = 0;
  size_t last_ = 0;
  bool mid_message_ = false;
  std::unique_ptr<TlsSession> tls_;
};

// Listens on `host` (on all interfaces if the host's address is not one of this machine's, as behind a NAT),
// at a port the kernel picks. `port` receives it.
absl::StatusOr<Fd> Listen(const std::string& host, uint16_t* port);

struct Accepted {
  Fd fd;
  // Names the machine it comes from: an IPv4 address, or the network that an IPv6 one belongs to (/64).
  uint64_t origin = 0;
};
// Takes one waiting connection; its descriptor is invalid when there is none.
Accepted Accept(const Fd& listener);

// Connects before `deadline_ns`, and gives each of the host's addresses a part of that: one that does not
// answer is retried by the caller, at once and not when the kernel would. CANCELLED when `interrupt`
// is set, UNAVAILABLE when no process listens there, DEADLINE_EXCEEDED: also while the host's name is looked
// up.
absl::StatusOr<Fd> Connect(const Address& address, int64_t deadline_ns, const Signal& interrupt);

// Waits until something in `fds` is ready or the deadline has passed; true in the first case.
bool Poll(absl::Span<pollfd> fds, int64_t deadline_ns);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_SOCKET_H_
