// Connections whose request has not come, or whose turn has not: they take no thread of the server.
//
// Purpose: a thread begins a connection when its request's headers are there, or, with TLS, its first bytes.
// Until then the connection waits here, for a bounded time and in a bounded number, of which each address has
// a share; beyond that the address's oldest one ends. Then it waits for its address's turn: once two ask,
// each has a share of the requests that are served at once. Ownership: owns the sockets that it has. Threads:
// any, plus one of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"

namespace bfio {

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
  void Wake() const;
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
  const int poll_, wake_;
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

}  // namespace bfio
