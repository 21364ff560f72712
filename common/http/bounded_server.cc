#include "common/http/bounded_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

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

}  // namespace bfio
