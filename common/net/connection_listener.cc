#include "common/net/connection_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/support/server_interceptor.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/resolve.h"
#include "common/net/tsan_edge.h"

namespace bfio {
namespace {

// Interval at which unauthenticated connections are checked while there are some, in milliseconds.
constexpr int kCheckPeriodMs = 20;
// Delay before connections are accepted again when there are no free descriptors, in milliseconds.
constexpr int kNoDescriptorsMs = 10;
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
  const absl::StatusOr<AddressList> list = Resolve(address.host, address.port, AI_PASSIVE);
  if (!list.ok()) return found;
  for (const addrinfo* one = list->get(); one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, one->ai_addr, one->ai_addrlen);
    found.emplace_back(storage, one->ai_addrlen);
  }
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

// The address in the form of grpc::ServerContext::peer.
std::string PeerName(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (const std::string v4 = AccountOf(address); v4.size() == sizeof(in_addr)) {
    inet_ntop(AF_INET, v4.data(), text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", PortOf(address));
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(), text.size());
  return absl::StrCat("ipv6:%5B", text.data(), "%5D:", PortOf(address));
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
  if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST)
    (void)epoll_ctl(poll, EPOLL_CTL_MOD, fd, &event);
}

// Has the listener count each new call, of whatever method.
class CallCounter final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallCounter(ConnectionListener* listener) : listener_(listener) { GrpcHandOver(this); }
  // None is needed.
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* call) override {
    GrpcTakeOver(this);
    listener_->OnCall(call->server_context()->peer());
    return nullptr;
  }

 private:
  ConnectionListener* const listener_;
};

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
      all_(limits.connections),
      outside_shares_(limits.outside),
      shares_(limits.unauthenticated) {
  Watch(poll_, wake_.fd(), EPOLLIN, kWake);
}

ConnectionListener::~ConnectionListener() {
  Stop();
  for (const int fd : listeners_) close(fd);
  for (const auto& [number, connection] : connections_) {
    close(connection.fd);
    if (connection.own >= 0) close(connection.own);
  }
  close(poll_);
}

void ConnectionListener::AddTo(grpc::ServerBuilder& builder,
                               std::shared_ptr<grpc::ServerCredentials> credentials) {
  using FromFd = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> on_call;
  on_call.push_back(std::make_unique<CallCounter>(this));
  builder.experimental().SetInterceptorCreators(std::move(on_call));
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
  wake_.Wake();
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
    for (int i = 0; i < count; ++i) {
      const auto& [what, data] = events[static_cast<size_t>(i)];
      if (data.u64 >= kListener) {
        AcceptAll(listeners_[data.u64 - kListener]);
      } else if (data.u64 == kWake) {
        wake_.Clear();
      } else if ((what & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
        Forget(data.u64);
      } else {
        OnBytes(data.u64);
      }
    }
    DropUnauthenticated();
    DropIncomplete();
    PassOn();
  }
}

int ConnectionListener::TimeoutMs() const {
  MutexLock lock(&mutex_);
  return outside_.empty() && unauthenticated_.empty() && counted_.empty() ? -1 : kCheckPeriodMs;
}

void ConnectionListener::AcceptAll(int listener) {
  for (;;) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Without free descriptors the connection stays queued and would wake this thread again at once.
      if (errno == EMFILE || errno == ENFILE) absl::SleepFor(absl::Milliseconds(kNoDescriptorsMs));
      return;
    }
    if (!Enter(fd, listener, from)) close(fd);
  }
}

bool ConnectionListener::Enter(int fd, int listener, const sockaddr_storage& from) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  const absl::Time now = MonotonicNow();
  Connection connection{.own = fd,
                        .listener = listener,
                        .peer = PeerName(from),
                        .accepted = now,
                        .calls = TokenBucket(limits_.calls_per_s, limits_.calls_at_once, now)};
  connection.host = AccountOf(from);
  MutexLock lock(&mutex_);
  const Peer address{connection.host, ""};
  if (all_.May(address)) connection.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (connection.fd < 0) {
    ++refused_;
    refusals_.Add(absl::StrCat("port ", port_, ": too many connections"), connection.peer);
    return false;
  }
  all_.Hold(address);
  if (!outside_shares_.May(address)) {
    const auto oldest = std::find_if(outside_.begin(), outside_.end(), [&](uint64_t other) {
      return connections_.at(other).host == connection.host && !connections_.at(other).dropped;
    });
    if (oldest != outside_.end()) Drop(connections_.at(*oldest), "too many connections without a call");
  }
  const uint64_t number = next_++;
  by_peer_[connection.peer] = number;
  outside_.push_back(number);
  outside_shares_.Hold(address);
  // A client that polls rarely, such as one of grpcio without a call, connects sooner when the server speaks
  // first. So a silent connection is passed on, too, while there are few.
  const bool few = std::ssize(unauthenticated_) + std::ssize(waiting_) < limits_.unauthenticated / 4;
  if (few) {
    connection.place = Connection::Place::kWaiting;
    waiting_.push_back(number);
  }
  Watch(poll_, connection.fd, few ? 0 : EPOLLIN | EPOLLRDHUP, number);
  connections_.emplace(number, std::move(connection));
  return true;
}

void ConnectionListener::OnBytes(uint64_t number) {
  MutexLock lock(&mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end() || found->second.place != Connection::Place::kSilent) return;
  found->second.place = Connection::Place::kWaiting;
  waiting_.push_back(number);
  // No further events: the end of the connection is always reported.
  Watch(poll_, found->second.fd, 0, number);
}

void ConnectionListener::PassOn() {
  for (;;) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    {
      MutexLock lock(&mutex_);
      const auto next = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](uint64_t number) {
        return shares_.May({connections_.at(number).host, ""});
      });
      if (next == waiting_.rend()) return;
      const uint64_t number = *next;
      Connection& connection = connections_.at(number);
      connection.place = Connection::Place::kPassed;
      connection.accepted = MonotonicNow();
      waiting_.erase(std::prev(next.base()));
      std::erase(outside_, number);
      outside_shares_.Give({connection.host, ""});
      unauthenticated_.push_back(number);
      shares_.Hold({connection.host, ""});
      parameters.listener_fd = connection.listener;
      parameters.fd = std::exchange(connection.own, -1);
    }
    acceptor_->HandleNewConnection(&parameters);
  }
}

void ConnectionListener::Forget(uint64_t number) {
  MutexLock lock(&mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  close(connection.fd);  // also removes it from the epoll set
  if (connection.own >= 0) close(connection.own);
  if (const auto peer = by_peer_.find(connection.peer); peer != by_peer_.end() && peer->second == number) {
    by_peer_.erase(peer);
  }
  const Peer address{connection.host, ""};
  all_.Give(address);
  if (std::erase(outside_, number) > 0) outside_shares_.Give(address);
  if (std::erase(unauthenticated_, number) > 0) shares_.Give(address);
  std::erase(waiting_, number);
  if (connection.arrived > 0) std::erase(counted_, number);
  connections_.erase(found);
}

void ConnectionListener::Drop(Connection& connection, absl::string_view why) {
  if (std::exchange(connection.dropped, true)) return;
  ++dropped_;
  refusals_.Add(absl::StrCat("port ", port_, ": ", why), connection.peer);
  // gRPC reads the end of the connection and closes its descriptor. Epoll reports the end of this one. What
  // has arrived and gRPC has not read is discarded.
  (void)shutdown(connection.fd, SHUT_RDWR);
  while (recv(connection.fd, nullptr, size_t{1} << 30, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

void ConnectionListener::DropUnauthenticated() {
  MutexLock lock(&mutex_);
  const absl::Time now = MonotonicNow();
  for (const uint64_t number : outside_) {
    Connection& connection = connections_.at(number);
    if (now - connection.accepted < limits_.patience) break;
    Drop(connection, "a connection without a call");
  }
  absl::flat_hash_set<absl::string_view> crowded;
  bool starved = false;
  for (const uint64_t number : waiting_) {
    const std::string& host = connections_.at(number).host;
    crowded.insert(host);
    starved = starved || shares_.held({host, ""}) == 0;
  }
  std::vector<std::pair<int64_t, Connection*>> by_bytes;
  int64_t sum = 0;
  for (const uint64_t number : unauthenticated_) {
    Connection& connection = connections_.at(number);
    const absl::Duration patience =
        starved || crowded.contains(connection.host) ? limits_.crowded_patience : limits_.patience;
    const int64_t bytes = BytesReceived(connection.fd);
    if (now - connection.accepted >= patience || bytes > limits_.unauthenticated_bytes) {
      Drop(connection, "a connection without an authenticated call");
    } else if (!connection.dropped) {
      by_bytes.emplace_back(bytes, &connection);
      sum += bytes;
    }
  }
  std::sort(by_bytes.begin(), by_bytes.end());
  for (; sum > limits_.unauthenticated_sum; by_bytes.pop_back()) {
    sum -= by_bytes.back().first;
    Drop(*by_bytes.back().second, "many bytes without an authenticated call");
  }
}

void ConnectionListener::DropIncomplete() {
  MutexLock lock(&mutex_);
  std::vector<std::pair<int64_t, Connection*>> by_bytes;
  int64_t sum = 0;
  for (const uint64_t number : counted_) {
    Connection& connection = connections_.at(number);
    if (connection.dropped) continue;
    by_bytes.emplace_back(BytesReceived(connection.fd) - connection.arrived, &connection);
    sum += by_bytes.back().first;
  }
  std::sort(by_bytes.begin(), by_bytes.end());
  for (; !by_bytes.empty() &&
         (by_bytes.back().first > limits_.incomplete_bytes || sum > limits_.incomplete_sum);
       by_bytes.pop_back()) {
    sum -= by_bytes.back().first;
    Drop(*by_bytes.back().second, "messages that do not arrive completely");
  }
}

void ConnectionListener::Arrived(const std::string& peer, int64_t bytes) {
  // Above what HTTP/2 and TLS add to a message, so that the rest does not grow.
  constexpr int64_t kPerMessage = 512, kShare = 128;
  MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return;
  Connection& connection = connections_.at(found->second);
  if (connection.arrived == 0) {
    counted_.push_back(found->second);
    wake_.Wake();
  }
  connection.arrived = std::clamp<int64_t>(connection.arrived + bytes + bytes / kShare + kPerMessage, 1,
                                           std::max<int64_t>(1, BytesReceived(connection.fd)));
}

void ConnectionListener::Authenticated(const std::string& peer, bool gateway) {
  MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return;
  Connection& connection = connections_.at(found->second);
  connection.gateway = gateway;
  if (std::exchange(connection.place, Connection::Place::kAuthenticated) == Connection::Place::kAuthenticated)
    return;
  if (std::erase(unauthenticated_, found->second) > 0) shares_.Give({connection.host, ""});
  if (!waiting_.empty()) wake_.Wake();
}

void ConnectionListener::OnCall(const std::string& peer) {
  MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return;
  Connection& connection = connections_.at(found->second);
  const bool known = connection.place == Connection::Place::kAuthenticated;
  if (connection.gateway) return;
  if (connection.calls.Wait(1, MonotonicNow()) > absl::ZeroDuration() ||
      (!known && ++connection.unknown_calls > limits_.unauthenticated_calls)) {
    return Drop(connection, "a connection with too many new calls");
  }
  connection.calls.Take(1);
}

int64_t ConnectionListener::Received(const std::string& peer) const {
  MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? 0 : BytesReceived(connections_.at(found->second).fd);
}

ConnectionListener::Counts ConnectionListener::counts() const {
  MutexLock lock(&mutex_);
  return {connections_.size(), outside_.size() + unauthenticated_.size(), refused_, dropped_};
}

}  // namespace bfio
