// Connections whose request has not come: they take no thread of the server.
//
// Purpose: a thread begins a connection when its request's headers are there, or, with TLS, its first bytes.
// Until then the connection waits here, for a bounded time and in a bounded number, of which each address has
// a share; beyond that the address's oldest one ends. Ownership: owns the sockets that it has. Threads: any,
// plus one of its own.
#ifndef BFIO_COMMON_HTTP_AWAITED_REQUESTS_H_
#define BFIO_COMMON_HTTP_AWAITED_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"

namespace bfio {

class AwaitedRequests {
 public:
  static constexpr int64_t kMost = 1024;

  // `serve` gets the socket of each connection whose request has come; it may block for a while.
  AwaitedRequests(bool tls, size_t header_bytes, absl::Duration patience, std::function<void(int)> serve);
  ~AwaitedRequests() { Close(); }

  // Takes the socket over, unless a thread has to serve it now.
  bool Await(int socket);
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
  void Remove(Sockets::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Sockets::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool tls_;
  const size_t header_bytes_;
  const absl::Duration patience_;
  const std::function<void(int)> serve_;
  const int poll_, wake_;
  Mutex mutex_;
  // Oldest first; and by socket.
  Sockets sockets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int, Sockets::iterator> by_socket_ ABSL_GUARDED_BY(mutex_);
  FairShares shares_ ABSL_GUARDED_BY(mutex_){kMost};
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_AWAITED_REQUESTS_H_
