#include "common/http/bounded_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/http/tls_session.h"

namespace bfio {
namespace {

// Upper bound of connections that wait for a thread.
constexpr size_t kMaxWaiting = 64;
constexpr int kMaxRequests = 10000;
// Time to wait for a client while other connections wait for a thread.
constexpr absl::Duration kCrowdedPatience = absl::Seconds(1);
constexpr absl::Duration kSlice = absl::Milliseconds(250);
// Time to read the rest of a request after the reply: closing with unread data would make the kernel discard
// the reply.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr size_t kLingerBytes = 8 << 20;

void Linger(int socket) {
  ::shutdown(socket, SHUT_WR);
  const absl::Time until = MonotonicNow() + kLinger;
  char rest[16 << 10];
  for (size_t read = 0; read < kLingerBytes && MonotonicNow() < until;) {
    if ((PollSocket(socket, POLLIN, absl::Milliseconds(100)) & POLLIN) == 0) return;
    const ssize_t got = recv(socket, rest, sizeof(rest), MSG_DONTWAIT);
    if (got <= 0) return;
    read += static_cast<size_t>(got);
  }
}

}  // namespace

BoundedServer::BoundedServer(const ConnectionLimits& limits, int at_once, int endless,
                             std::unique_ptr<ReloadedTls> tls)
    : limits_(limits), tls_(std::move(tls)) {
  new_task_queue = [this, at_once, endless] {
    // One more, which takes new connections.
    auto* const pool = new BoundedPool(at_once + endless + 1, kMaxWaiting, state_.waiting, [this] {
      state_.ending = true;
      awaited_->Close();
    });
    const auto serve = [this, pool](int socket, const Peer& address) {
      pool->enqueue([this, socket, address] { ServeAndClose(socket, address); });
    };
    awaited_ = std::make_unique<AwaitedRequests>(
        tls_ != nullptr, limits_.header_bytes, limits_.first_patience, at_once, state_.waiting.get(), serve);
    return pool;
  };
  set_payload_max_length(limits.body_bytes);
  // Only announced in replies.
  set_keep_alive_timeout(absl::ToInt64Seconds(limits.idle_patience));
  set_keep_alive_max_count(kMaxRequests);
  set_tcp_nodelay(true);
  // httplib's default is SO_REUSEPORT, with which two programs could bind one port and share its callers.
  set_socket_options([this](int socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    listener_ = socket;
  });
}

void BoundedServer::Stop() {
  // Set first: the accepting thread may wait for one of the others.
  state_.ending = true;
  stop();
}

void BoundedServer::WidenBacklog() {
  ::listen(listener_, SOMAXCONN);
}

bool BoundedServer::AwaitRequest(HttpConnection& connection, absl::Duration patience) {
  const absl::Time begin = MonotonicNow();
  while (!state_.ending) {
    if (connection.WaitForRequest(kSlice)) return true;
    const absl::Duration idle = MonotonicNow() - begin;
    if (idle > patience || connection.PeerGone() || (idle > kCrowdedPatience && *state_.waiting > 0)) break;
  }
  return false;
}

bool BoundedServer::process_and_close_socket(socket_t socket) {
  awaited_->Await(socket);
  return true;
}

void BoundedServer::ServeAndClose(int socket, const Peer& address) {
  bool left = false, linger = false;
  const auto leave = [&] {
    if (!std::exchange(left, true)) awaited_->Left(address);
  };
  std::unique_ptr<TlsSession> session;
  if (tls_ == nullptr || (session = ShakeHands(socket)) != nullptr) {
    HttpConnection connection(socket, limits_, state_, std::move(session), leave);
    Serve(connection);
    linger = connection.close() && !left;
  }
  if (linger) Linger(socket);
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
  leave();
}

std::unique_ptr<TlsSession> BoundedServer::ShakeHands(int socket) {
  const absl::Time start = MonotonicNow();
  return TlsSession::Accept(*tls_, socket, start + limits_.first_patience, [&] {
    const bool crowded = *state_.waiting > 0 && MonotonicNow() - start > limits_.crowded_read_timeout;
    return !state_.ending && !crowded;
  });
}

void BoundedServer::Serve(HttpConnection& connection) {
  bool open = true;
  for (int i = 0; open && i < kMaxRequests; ++i) {
    if (!AwaitRequest(connection, i == 0 ? limits_.first_patience : limits_.idle_patience)) break;
    connection.BeginRequest();
    bool closed = false;
    // A connection keeps its thread only while no other connection waits for one.
    const bool last = i + 1 == kMaxRequests || *state_.waiting > 0;
    open = process_request(connection, last, closed, nullptr) && !closed && !connection.close() && !last;
    connection.EndRequest();
  }
}

namespace {

// Interval at which time is checked while connections wait, in milliseconds.
constexpr int kCheckPeriodMs = 100;

std::string AccountOfPeer(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? AccountOf(address) : "";
}

}  // namespace

AwaitedRequests::AwaitedRequests(bool tls, size_t header_bytes, absl::Duration patience, int64_t at_once,
                                 std::atomic<int64_t>* waiting, std::function<void(int, const Peer&)> serve)
    : tls_(tls),
      header_bytes_(header_bytes),
      patience_(patience),
      turns_waiting_(waiting),
      serve_(std::move(serve)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      turns_(FairShares::WholeWhileAlone(at_once)) {
  Watch(wake_.fd(), EPOLLIN | EPOLLET);
  thread_ = std::thread([this] { Run(); });
}

void AwaitedRequests::Watch(int fd, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  (void)epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
}

bool AwaitedRequests::HasRequest(int socket) const {
  std::vector<char> bytes(tls_ ? 1 : header_bytes_);
  const ssize_t got = recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  const absl::string_view text(bytes.data(), static_cast<size_t>(got));
  return text.empty() || text.size() == bytes.size() || absl::StrContains(text, "\n\r\n") ||
         absl::StrContains(text, "\n\n");
}

void AwaitedRequests::Await(int socket) {
  const Peer address{AccountOfPeer(socket), ""};
  {
    MutexLock lock(&mutex_);
    if (!shares_.May(address)) {
      const auto oldest = std::find_if(sockets_.begin(), sockets_.end(), [&](const Waiting& other) {
        return other.address.group == address.group;
      });
      if (oldest != sockets_.end()) End(oldest);
    }
    if (closed_ || !shares_.Take(address)) {
      close(socket);
    } else if (HasRequest(socket)) {
      AwaitTurn(socket, address);
    } else {
      if (sockets_.empty()) wake_.Wake();
      sockets_.push_back({socket, address, MonotonicNow() + patience_});
      by_socket_[socket] = std::prev(sockets_.end());
      // Reports also what has come before.
      Watch(socket, EPOLLIN | EPOLLRDHUP | EPOLLET);
    }
  }
  ServeNext();
}

void AwaitedRequests::AwaitTurn(int socket, const Peer& address) {
  turns_.Ask(address.group);
  ready_.Push(address, socket);
  ++*turns_waiting_;
}

void AwaitedRequests::ServeNext() {
  for (;;) {
    std::optional<std::pair<Peer, int>> next;
    {
      MutexLock lock(&mutex_);
      next = ready_.Pop(turns_);
      if (!next) return;
      shares_.Give(next->first);
      --*turns_waiting_;
    }
    serve_(next->second, next->first);
  }
}

void AwaitedRequests::Left(const Peer& address) {
  {
    MutexLock lock(&mutex_);
    turns_.Give(address);
  }
  ServeNext();
}

void AwaitedRequests::Remove(Sockets::iterator it) {
  (void)epoll_ctl(poll_, EPOLL_CTL_DEL, it->socket, nullptr);
  by_socket_.erase(it->socket);
  sockets_.erase(it);
}

void AwaitedRequests::End(Sockets::iterator it) {
  const int socket = it->socket;
  shares_.Give(it->address);
  Remove(it);
  close(socket);
}

void AwaitedRequests::Run() {
  pthread_setname_np(pthread_self(), "bfio-http-wait");
  std::array<epoll_event, 64> events;
  for (;;) {
    int timeout = kCheckPeriodMs;
    {
      MutexLock lock(&mutex_);
      if (sockets_.empty() && !closed_) timeout = -1;
    }
    const int count = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), timeout);
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      for (int i = 0; i < count; ++i) {
        const int socket = events[static_cast<size_t>(i)].data.fd;
        const auto found = by_socket_.find(socket);
        if (found == by_socket_.end()) continue;
        if (HasRequest(socket)) {
          AwaitTurn(socket, found->second->address);
          Remove(found->second);
        } else if ((PollSocket(socket, POLLRDHUP, absl::ZeroDuration()) & POLLRDHUP) != 0) {
          // The rest of the request cannot come any more. An event might be of an earlier such socket.
          End(found->second);
        }
      }
      const absl::Time now = MonotonicNow();
      while (!sockets_.empty() && sockets_.front().until <= now) End(sockets_.begin());
    }
    ServeNext();
  }
}

void AwaitedRequests::Close() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    while (!sockets_.empty()) End(sockets_.begin());
    FairShares all(int64_t{1} << 40);
    for (; const auto next = ready_.Pop(all); --*turns_waiting_) close(next->second);
  }
  if (!thread_.joinable()) return;
  wake_.Wake();
  thread_.join();
  close(poll_);
}

}  // namespace bfio
