// A listening port of a gRPC server whose connections are counted and bounded from the first byte on.
//
// Purpose: gRPC accepts every connection, and what it buffers of one before authentication has no bound
// (its header parser in version 1.51, for one). So the port is ours: connections are accepted here, and
// handed to gRPC, which does TLS and HTTP/2. A connection is authenticated when a call on it has been
// (Authenticated). Until then it may send kUnauthenticatedBytes and last `patience`, and there are so many at
// most; more wait in the kernel's queue. Connections whose peer's host is gone are ended by TCP
// keepalive. Ownership: sockets are gRPC's; this keeps a second descriptor of each, to see its end and to end
// it. Threads: Bind, Serve, Stop and destruction from one thread; the others from any.
#ifndef BFIO_COMMON_NET_CONNECTION_LISTENER_H_
#define BFIO_COMMON_NET_CONNECTION_LISTENER_H_

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/telemetry/refusal_log.h"

namespace bfio {

class ConnectionListener {
 public:
  struct Limits {
    // More are closed at once: in all, and from one address (of IPv6: one /64 network).
    size_t connections = 8192;
    size_t connections_of_peer = 4096;
    // Connections without an authenticated call; more are not accepted until some are.
    size_t unauthenticated = 128;
    // What such a connection may send, TLS and HTTP/2 included, and how long it may last: shorter while
    // `unauthenticated` is reached.
    int64_t unauthenticated_bytes = 256 << 10;
    absl::Duration patience = absl::Seconds(60);
    absl::Duration crowded_patience = absl::Seconds(2);
  };
  struct Counts {
    size_t connections = 0;
    size_t unauthenticated = 0;
    // Closed at once; ended for what they sent or how long they lasted, unauthenticated.
    uint64_t refused = 0;
    uint64_t dropped = 0;
  };

  // Listens; port 0 takes a free one. Names are looked up here, at the start, and all their addresses
  // listened on. UNAVAILABLE when the port cannot be had.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Bind(const Address& address, Limits limits);
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Bind(const Address& address) {
    return Bind(address, Limits());
  }
  ~ConnectionListener();
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;

  // As bound.
  uint16_t port() const { return port_; }

  // Makes this a port of the server that is being built, whose handshakes (TLS, HTTP/2) may take 10 s.
  void AddTo(grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials);
  // Hands connections to the server from now on. REQUIRES: AddTo, and the server has started.
  void Serve();
  // Accepts no more. REQUIRED before the server is shut down.
  void Stop();

  // A call of the connection from `peer` (grpc::ServerContext::peer) has been authenticated.
  void Authenticated(const std::string& peer);

  Counts counts() const;

 private:
  struct Connection {
    // Of ours.
    int fd = -1;
    std::string peer, host;
    absl::Time accepted;
    bool authenticated = false;
    bool dropped = false;
  };

  ConnectionListener(std::vector<int> listeners, uint16_t port, Limits limits);

  void Run();
  void AcceptAll(int listener);
  // False when it is refused.
  bool Enter(int fd, const sockaddr_storage& from) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends unauthenticated connections that have sent too much or lasted too long.
  void DropUnauthenticated() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Crowded() const ABSL_LOCKS_EXCLUDED(mutex_);
  // How long Run may sleep.
  int TimeoutMs() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  const std::vector<int> listeners_;
  const uint16_t port_;
  // epoll, and what wakes it.
  int poll_ = -1, wake_ = -1;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::thread thread_;

  RefusalLog refusals_;
  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint64_t> by_peer_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, size_t> of_host_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> unauthenticated_ ABSL_GUARDED_BY(mutex_);
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0, dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_CONNECTION_LISTENER_H_
