#include "common/net/connection_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace bfio {
namespace {

// Interval at which unauthenticated connections are checked while there are some, in milliseconds.
constexpr int kLookMs = 20;
// Delay between checks while connections wait in the kernel's queue at the limit, in milliseconds.
constexpr int kCrowdedMs = 10;
// TCP keepalive: an idle connection whose peer's host is gone is detected after 60 s.
constexpr int kKeepaliveIdleS = 30, kKeepaliveIntervalS = 10, kKeepaliveProbes = 3;
// Numbers in the epoll set: listening sockets from kListener on, the wake-up descriptor, and below them
// connections.
constexpr uint64_t kListener = uint64_t{1} << 62, kWake = uint64_t{1} << 61;

void SetOption(int fd, int level, int option, int value) {
  // Options that this kernel does not support are skipped.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

void SetPort(sockaddr_storage& address, uint16_t port) {
  auto& field = address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                             : reinterpret_cast<sockaddr_in6&>(address).sin6_port;
  field = htons(port);
}

// Opens a listening socket and sets `address` to the bound one; -1 with errno on failure.
int Listen(sockaddr_storage& address, socklen_t size) {
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  const bool any = address.ss_family == AF_INET6 &&
                   IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  if (address.ss_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? 0 : 1);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

std::vector<std::pair<sockaddr_storage, socklen_t>> AddressesOf(const Address& address) {
  std::vector<std::pair<sockaddr_storage, socklen_t>> found;
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list) != 0) return {};
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, one->ai_addr, one->ai_addrlen);
    found.emplace_back(storage, one->ai_addrlen);
  }
  freeaddrinfo(list);
  return found;
}

// Opens sockets for all addresses of the host on one port, and sets `port` to it. Addresses of a family that
// this machine does not have are skipped. Empty, with errno, when any other fails.
std::vector<int> ListenOn(const Address& address, uint16_t& port) {
  std::vector<int> listeners;
  errno = EADDRNOTAVAIL;
  for (auto& [at, size] : AddressesOf(address)) {
    SetPort(at, port);
    const int fd = Listen(at, size);
    if (fd >= 0) {
      listeners.push_back(fd);
      port = PortOf(at);
    } else if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) {
      const int error = errno;
      for (const int open : listeners) close(open);
      errno = error;
      return {};
    }
  }
  return listeners;
}

// The IPv4 address that an IPv6 address maps, if any.
std::optional<in_addr> MappedV4(const sockaddr_in6& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr) == 0) return std::nullopt;
  in_addr v4;
  std::memcpy(&v4, address.sin6_addr.s6_addr + 12, sizeof(v4));
  return v4;
}

// The address in the form of grpc::ServerContext::peer, and the identifier of the host for limits: the
// address, or an IPv6 network of 64 bits.
std::pair<std::string, std::string> NamesOf(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  std::optional<in_addr> v4;
  if (address.ss_family == AF_INET) v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.ss_family == AF_INET6) v4 = MappedV4(v6);
  if (v4) {
    inet_ntop(AF_INET, &*v4, text.data(), text.size());
    return {absl::StrCat("ipv4:", text.data(), ":", PortOf(address)), text.data()};
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return {absl::StrCat("ipv6:%5B", text.data(), "%5D:", PortOf(address)),
          std::string(reinterpret_cast<const char*>(v6.sin6_addr.s6_addr), 8)};
}

// Bytes received since the connection began; 0 where the kernel does not report it.
int64_t BytesReceived(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received)) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

void Watch(int poll, int fd, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  (void)epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Bind(const Address& address,
                                                                             Limits limits) {
  uint16_t port = address.port;
  std::vector<int> listeners;
  // 0.0.0.0 includes IPv6 where available, as in gRPC.
  if (address.host == "0.0.0.0") listeners = ListenOn({"::", port}, port);
  const bool without_v6 = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
  if (address.host != "0.0.0.0" || (listeners.empty() && without_v6)) listeners = ListenOn(address, port);
  if (listeners.empty()) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString(),
                                               ": the port is taken or the ",
                                               "address is not this machine's"));
  }
  return std::unique_ptr<ConnectionListener>(new ConnectionListener(std::move(listeners), port, limits));
}

ConnectionListener::ConnectionListener(std::vector<int> listeners, uint16_t port, Limits limits)
    : limits_(limits),
      listeners_(std::move(listeners)),
      port_(port),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Watch(poll_, wake_, EPOLLIN, kWake);
}

ConnectionListener::~ConnectionListener() {
  Stop();
  for (const int fd : listeners_) close(fd);
  for (const auto& [number, connection] : connections_) close(connection.fd);
  close(wake_);
  close(poll_);
}

void ConnectionListener::AddTo(grpc::ServerBuilder& builder,
                               std::shared_ptr<grpc::ServerCredentials> credentials) {
  using FromFd = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(FromFd::FROM_FD, std::move(credentials));
}

void ConnectionListener::Serve() {
  for (size_t i = 0; i < listeners_.size(); ++i) Watch(poll_, listeners_[i], EPOLLIN, kListener + i);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionListener::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  thread_.join();
}

void ConnectionListener::Run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), TimeoutMs());
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    DropUnauthenticated();
    bool crowded = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[static_cast<size_t>(i)].data.u64;
      if (number >= kListener) {
        AcceptAll(listeners_[number - kListener]);
        crowded = crowded || Crowded();
      } else if (number != kWake) {
        Forget(number);
      }
    }
    // The listening socket stays readable: wait before it is checked again for capacity.
    if (crowded) absl::SleepFor(absl::Milliseconds(kCrowdedMs));
  }
}

int ConnectionListener::TimeoutMs() const {
  MutexLock lock(&mutex_);
  return unauthenticated_.empty() ? -1 : kLookMs;
}

bool ConnectionListener::Crowded() const {
  MutexLock lock(&mutex_);
  return unauthenticated_.size() >= limits_.unauthenticated;
}

void ConnectionListener::AcceptAll(int listener) {
  while (!Crowded()) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Without free descriptors the connection stays queued and would wake this thread again at once.
      if (errno == EMFILE || errno == ENFILE) absl::SleepFor(absl::Milliseconds(kCrowdedMs));
      return;
    }
    if (!Enter(fd, from)) {
      close(fd);
      continue;
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener;
    parameters.fd = fd;
    acceptor_->HandleNewConnection(&parameters);
  }
}

bool ConnectionListener::Enter(int fd, const sockaddr_storage& from) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  Connection connection;
  std::tie(connection.peer, connection.host) = NamesOf(from);
  MutexLock lock(&mutex_);
  size_t& of_host = of_host_[connection.host];
  if (connections_.size() < limits_.connections && of_host < limits_.connections_of_peer) {
    connection.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }
  if (connection.fd < 0) {
    if (of_host == 0) of_host_.erase(connection.host);
    ++refused_;
    refusals_.Add(absl::StrCat("port ", port_, ": too many connections"), connection.peer);
    return false;
  }
  ++of_host;
  connection.accepted = MonotonicNow();
  const uint64_t number = next_++;
  by_peer_[connection.peer] = number;
  unauthenticated_.push_back(number);
  // No events are requested: the end of the connection is always reported.
  Watch(poll_, connection.fd, 0, number);
  connections_.emplace(number, std::move(connection));
  return true;
}

void ConnectionListener::Forget(uint64_t number) {
  MutexLock lock(&mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  close(connection.fd);  // also removes it from the epoll set
  if (const auto peer = by_peer_.find(connection.peer); peer != by_peer_.end() && peer->second == number) {
    by_peer_.erase(peer);
  }
  if (const auto host = of_host_.find(connection.host); --host->second == 0) of_host_.erase(host);
  std::erase(unauthenticated_, number);
  connections_.erase(found);
}

void ConnectionListener::DropUnauthenticated() {
  MutexLock lock(&mutex_);
  if (unauthenticated_.empty()) return;
  const absl::Time now = MonotonicNow();
  const bool crowded = unauthenticated_.size() >= limits_.unauthenticated;
  const absl::Duration patience = crowded ? limits_.crowded_patience : limits_.patience;
  for (const uint64_t number : unauthenticated_) {
    Connection& connection = connections_.at(number);
    if (connection.dropped) continue;
    if (now - connection.accepted < patience &&
        BytesReceived(connection.fd) <= limits_.unauthenticated_bytes) {
      continue;
    }
    // gRPC reads the end of the connection and closes its descriptor; then epoll reports the end of this one.
    connection.dropped = true;
    ++dropped_;
    refusals_.Add(absl::StrCat("port ", port_, ": a connection without an authenticated call"),
                  connection.peer);
    (void)shutdown(connection.fd, SHUT_RDWR);
  }
}

void ConnectionListener::Authenticated(const std::string& peer) {
  MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return;
  Connection& connection = connections_.at(found->second);
  if (std::exchange(connection.authenticated, true)) return;
  std::erase(unauthenticated_, found->second);
}

ConnectionListener::Counts ConnectionListener::counts() const {
  MutexLock lock(&mutex_);
  return {connections_.size(), unauthenticated_.size(), refused_, dropped_};
}

}  // namespace bfio
