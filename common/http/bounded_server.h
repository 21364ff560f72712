// httplib's server with bounded connections (connection.h).
//
// Purpose: how a connection is served, from its first request to its close; nothing about what is served.
// http_server.h builds on it. Why a derived class: httplib 0.11.4 (Debian 12) has timeouts per read and write
// only, so a client that sends one byte at a time keeps a thread for hours; its own keep-alive loop also
// keeps a thread while other connections wait for one. process_and_close_socket is httplib's only virtual
// function between accept and the first read. SSLServer overrides it too, but reads its files once.
// Ownership: owns the TLS files; the handlers' owner outlives listen_after_bind. Threads: listen_after_bind
// runs on a thread of the owner; connections and handlers run on the pool's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/base/waker.h"
#include "common/http/connection.h"

namespace bfio {

// Connections whose request has not come, or whose turn has not: they take no thread of the server.
//
// Purpose: a thread begins a connection when its request's headers are there, or, with TLS, its first bytes.
// Until then the connection waits here, for a bounded time and in a bounded number, of which each address has
// a share; beyond that the address's oldest one ends. Then it waits for its address's turn: once two ask,
// each has a share of the requests that are served at once. Ownership: owns the sockets that it has. Threads:
// any, plus one of its own.
class AwaitedRequests {
 public:
  static constexpr int64_t kMost = 1024;

  // `serve` gets the socket of each connection whose turn it is, `at_once` of them until Left; it may block
  // for a while. `waiting` counts those that wait for their turn; it outlives this.
  AwaitedRequests(bool tls, size_t header_bytes, absl::Duration patience, int64_t at_once,
                  std::atomic<int64_t>* waiting, std::function<void(int, const Peer&)> serve);
  ~AwaitedRequests() { Close(); }

  // Takes the socket over.
  void Await(int socket);
  // The connection's turn is over.
  void Left(const Peer& address);
  // Closes what waits, and serves nothing further.
  void Close();

 private:
  struct Waiting {
    int socket = -1;
    Peer address;
    absl::Time until;
  };
  using Sockets = std::list<Waiting>;

  void Run();
  void Watch(int fd, uint32_t events) const;
  bool HasRequest(int socket) const;
  void AwaitTurn(int socket, const Peer& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeNext() ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(Sockets::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Sockets::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool tls_;
  const size_t header_bytes_;
  const absl::Duration patience_;
  std::atomic<int64_t>* const turns_waiting_;
  const std::function<void(int, const Peer&)> serve_;
  const int poll_;
  const Waker wake_;
  Mutex mutex_;
  // Oldest first; and by socket.
  Sockets sockets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int, Sockets::iterator> by_socket_ ABSL_GUARDED_BY(mutex_);
  // Of all connections that wait here.
  FairShares shares_ ABSL_GUARDED_BY(mutex_){kMost};
  FairQueue<int> ready_ ABSL_GUARDED_BY(mutex_);
  FairShares turns_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class BoundedServer final : public httplib::Server {
 public:
  // `at_once`: connections that are served, in shares of their addresses; `endless`: those beside them that
  // send endless replies (HttpConnection::LeaveTurn), which the owner bounds. Plain text if `tls` is null.
  BoundedServer(const ConnectionLimits& limits, int at_once, int endless, std::unique_ptr<ReloadedTls> tls);

  // Call after binding: httplib lets only five of the clients that connect at once wait in the kernel.
  void WidenBacklog();

  // Replaces stop(): also drops open connections. REQUIRES: the server listens. This and the following
  // functions may be called from any thread.
  void Stop();
  // True from a call of Stop, or the loss of the port, until Reopened; connections are closed meanwhile.
  bool ending() const { return state_.ending; }
  // Call when it is bound again and will listen.
  void Reopened() { state_.ending = false; }

 private:
  // Leaves the connection to awaited_.
  bool process_and_close_socket(socket_t socket) override;
  void ServeAndClose(int socket, const Peer& address);
  // Null when the handshake fails.
  std::unique_ptr<TlsSession> ShakeHands(int socket);
  // Serves requests until the connection ends.
  void Serve(HttpConnection& connection);
  bool AwaitRequest(HttpConnection& connection, absl::Duration patience);

  const ConnectionLimits limits_;
  const std::unique_ptr<ReloadedTls> tls_;
  // The socket that was bound last; owned by httplib.
  int listener_ = -1;
  ServerState state_;
  // Ends with the pool that it gives connections to.
  std::unique_ptr<AwaitedRequests> awaited_;
};

}  // namespace bfio
