#include "common/http/awaited_requests.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"
#include "common/base/clock.h"

namespace bfio {
namespace {

// Interval at which time is checked while connections wait, in milliseconds.
constexpr int kLookMs = 100;

std::string AccountOfPeer(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? AccountOf(address) : "";
}

}  // namespace

AwaitedRequests::AwaitedRequests(bool tls, size_t header_bytes, absl::Duration patience,
                                 std::function<void(int)> serve)
    : tls_(tls),
      header_bytes_(header_bytes),
      patience_(patience),
      serve_(std::move(serve)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Watch(wake_, EPOLLIN | EPOLLET);
  thread_ = std::thread([this] { Run(); });
}

void AwaitedRequests::Watch(int fd, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  (void)epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
}

void AwaitedRequests::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

bool AwaitedRequests::HasRequest(int socket) const {
  std::vector<char> bytes(tls_ ? 1 : header_bytes_);
  const ssize_t got = recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  const absl::string_view text(bytes.data(), static_cast<size_t>(got));
  return text.empty() || text.size() == bytes.size() || absl::StrContains(text, "\n\r\n") ||
         absl::StrContains(text, "\n\n");
}

bool AwaitedRequests::Await(int socket) {
  if (HasRequest(socket)) return false;
  MutexLock lock(&mutex_);
  if (closed_) return false;
  const Peer address{AccountOfPeer(socket), ""};
  if (!shares_.May(address)) {
    const auto oldest = std::find_if(sockets_.begin(), sockets_.end(), [&](const Waiting& other) {
      return other.address.group == address.group;
    });
    if (oldest == sockets_.end()) return false;
    End(oldest);
  }
  if (sockets_.empty()) Wake();
  shares_.Hold(address);
  sockets_.push_back({socket, address, MonotonicNow() + patience_});
  by_socket_[socket] = std::prev(sockets_.end());
  // Reports also what has come before.
  Watch(socket, EPOLLIN | EPOLLRDHUP | EPOLLET);
  return true;
}

void AwaitedRequests::Remove(Sockets::iterator it) {
  (void)epoll_ctl(poll_, EPOLL_CTL_DEL, it->socket, nullptr);
  shares_.Give(it->address);
  by_socket_.erase(it->socket);
  sockets_.erase(it);
}

void AwaitedRequests::End(Sockets::iterator it) {
  const int socket = it->socket;
  Remove(it);
  close(socket);
}

void AwaitedRequests::Run() {
  pthread_setname_np(pthread_self(), "bfio-http-wait");
  std::array<epoll_event, 64> events;
  for (;;) {
    int timeout = kLookMs;
    {
      MutexLock lock(&mutex_);
      if (sockets_.empty() && !closed_) timeout = -1;
    }
    const int count = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), timeout);
    std::vector<int> ready;
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      for (int i = 0; i < count; ++i) {
        const int socket = events[static_cast<size_t>(i)].data.fd;
        const auto found = by_socket_.find(socket);
        if (found == by_socket_.end() || !HasRequest(socket)) continue;
        Remove(found->second);
        ready.push_back(socket);
      }
      const absl::Time now = MonotonicNow();
      while (!sockets_.empty() && sockets_.front().until <= now) End(sockets_.begin());
    }
    for (const int socket : ready) serve_(socket);
  }
}

void AwaitedRequests::Close() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    while (!sockets_.empty()) End(sockets_.begin());
  }
  if (!thread_.joinable()) return;
  Wake();
  thread_.join();
  close(wake_);
  close(poll_);
}

}  // namespace bfio
