#include "worker/barrier/star/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/annotated.h"
#include "common/base/mutex.h"
#include "common/base/resolve.h"
#include "common/base/status_macros.h"

namespace bfio::worker {
namespace {

constexpr int kBacklog = 1024;
// Time for a connection attempt to one address. If other connections have filled the listener's backlog, the
// kernel retries only after one second, and then after two more.
constexpr int64_t kConnectNs = 500'000'000;

absl::StatusOr<AddressList> Lookup(const std::string& host, uint16_t port, int flags) {
  return Annotated(absl::StrCat("cannot resolve host '", host, "'"), Resolve(host, port, flags));
}

// A name lookup in a detached thread, because getaddrinfo has no deadline.
struct LateLookup {
  Signal done;
  Mutex mutex;
  absl::StatusOr<AddressList> result ABSL_GUARDED_BY(mutex) = absl::UnknownError("under way");
};

absl::StatusOr<AddressList> ResolveBy(const Address& address, int64_t deadline_ns, const Signal& interrupt) {
  auto number = Lookup(address.host, address.port, AI_NUMERICHOST);
  if (number.ok()) return number;
  const auto lookup = std::make_shared<LateLookup>();
  std::thread([lookup, address] {
    auto result = Lookup(address.host, address.port, 0);
    MutexLock lock(&lookup->mutex);
    lookup->result = std::move(result);
    lookup->done.Set();
  }).detach();
  std::array<pollfd, 2> fds{{{interrupt.fd(), POLLIN, 0}, {lookup->done.fd(), POLLIN, 0}}};
  if (!Poll(absl::MakeSpan(fds), deadline_ns)) {
    return absl::DeadlineExceededError(absl::StrCat("looking up host '", address.host, "' timed out"));
  }
  if (fds[0].revents != 0) return absl::CancelledError("interrupted");
  MutexLock lock(&lookup->mutex);
  return std::move(lookup->result);
}

std::string Reason(absl::string_view what) {
  return absl::StrCat(what, ": ", std::strerror(errno));
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// The port that the kernel assigned to a listening socket.
uint16_t BoundPort(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  if (name.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&name)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

absl::StatusOr<Fd> ListenAt(const addrinfo& at) {
  Fd fd(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(Reason("socket"));
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0) return absl::UnavailableError(Reason("bind"));
  if (listen(fd.get(), kBacklog) != 0) return absl::UnavailableError(Reason("listen"));
  return fd;
}

absl::StatusOr<Fd> ConnectTo(const addrinfo& to, int64_t deadline_ns, const Signal& interrupt) {
  Fd fd(socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(Reason("socket"));
  SetNoDelay(fd.get());
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return absl::UnavailableError(Reason("connect"));
  std::array<pollfd, 2> fds{{{interrupt.fd(), POLLIN, 0}, {fd.get(), POLLOUT, 0}}};
  if (!Poll(absl::MakeSpan(fds), deadline_ns)) return absl::DeadlineExceededError("connect timed out");
  if (fds[0].revents != 0) return absl::CancelledError("connect interrupted");
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError(absl::StrCat("connect: ", std::strerror(error)));
  return fd;
}

}  // namespace

absl::Status FillRandom(absl::Span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes.remove_prefix(static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      return absl::UnavailableError(Reason("getrandom"));
    }
  }
  return absl::OkStatus();
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

bool Signal::IsSet() const {
  std::array<pollfd, 1> fds{{{fd(), POLLIN, 0}}};
  return Poll(absl::MakeSpan(fds), 0);
}

Connection::Read Connection::ReadMessage(size_t size) {
  while (have_ < size) {
    const auto got = ReadSome({buffer_.data() + have_, size - have_});
    if (!got.has_value()) return Read::kClosed;
    if (*got == 0) return Read::kPartial;
    have_ += *got;
  }
  have_ = 0;
  last_ = size;
  return Read::kMessage;
}

bool Connection::Send(absl::Span<const uint8_t> bytes) {
  return SendSome(bytes) == bytes.size();
}

std::optional<size_t> Connection::ReadSome(absl::Span<uint8_t> into) {
  if (tls_ != nullptr) return tls_->ReadSome(into);
  for (;;) {
    const ssize_t got = recv(fd_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    return std::nullopt;
  }
}

std::optional<size_t> Connection::SendSome(absl::Span<const uint8_t> bytes) {
  if (tls_ != nullptr) return tls_->SendSome(bytes);
  for (;;) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    return std::nullopt;
  }
}

absl::StatusOr<Fd> Listen(const std::string& host, uint16_t* port) {
  BFIO_ASSIGN_OR_RETURN(auto list, Lookup(host, 0, AI_PASSIVE));
  absl::StatusOr<Fd> fd = absl::UnavailableError(absl::StrCat("no address for host '", host, "'"));
  for (const addrinfo* at = list.get(); at != nullptr && !fd.ok(); at = at->ai_next) fd = ListenAt(*at);
  if (!fd.ok()) {
    auto any = Lookup("", 0, AI_PASSIVE);
    if (any.ok()) fd = ListenAt(**any);
  }
  if (fd.ok()) *port = BoundPort(fd->get());
  return fd;
}

Accepted Accept(const Fd& listener) {
  sockaddr_storage from{};
  socklen_t size = sizeof(from);
  Accepted accepted{
      Fd(accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)),
      {}};
  if (!accepted.fd.valid()) return accepted;
  SetNoDelay(accepted.fd.get());
  accepted.account = AccountOf(from);
  return accepted;
}

absl::StatusOr<Fd> Connect(const Address& address, int64_t deadline_ns, const Signal& interrupt) {
  BFIO_ASSIGN_OR_RETURN(auto list, ResolveBy(address, deadline_ns, interrupt));
  absl::StatusOr<Fd> fd = absl::UnavailableError(absl::StrCat("no address for host '", address.host, "'"));
  for (const addrinfo* to = list.get(); to != nullptr && !fd.ok(); to = to->ai_next) {
    fd = ConnectTo(*to, std::min(deadline_ns, MonotonicNs() + kConnectNs), interrupt);
    if (absl::IsCancelled(fd.status())) break;
  }
  return fd;
}

bool Poll(absl::Span<pollfd> fds, int64_t deadline_ns) {
  for (;;) {
    const int64_t left = std::max<int64_t>(0, deadline_ns - MonotonicNs());
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    const int ready = ppoll(fds.data(), fds.size(), &timeout, nullptr);
    if (ready > 0) return true;
    if (ready == 0 && MonotonicNs() >= deadline_ns) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace bfio::worker
