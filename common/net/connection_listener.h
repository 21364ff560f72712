// A listening port of a gRPC server whose connections are bounded from the first byte on.
//
// Purpose: gRPC accepts every connection, and what it buffers of a connection before authentication is
// unbounded (for example in the header parser of version 1.51). So connections are accepted here and then
// passed to gRPC, which does TLS and HTTP/2. A connection counts as authenticated once a call on it is
// (Authenticated). Until then it may send at most `unauthenticated_bytes` and last for `patience`, and the
// number of such connections is bounded; further ones wait in the kernel's queue. Connections to a lost host
// are ended by TCP keepalive. Ownership: gRPC owns the sockets; this object has a second descriptor of each,
// to see its end and to end it: two for each connection, for which InitProgram raises the limit. Threads:
// Bind, Serve, Stop and destruction from one thread; the others from any.
#ifndef BFIO_COMMON_NET_CONNECTION_LISTENER_H_
#define BFIO_COMMON_NET_CONNECTION_LISTENER_H_

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/telemetry/line_limiter.h"

namespace bfio {

class ConnectionListener {
 public:
  struct Limits {
    // Upper bounds of connections, in total and per address (IPv6: per /64 network). Further ones are closed
    // at once.
    size_t connections = 8192;
    size_t connections_of_peer = 4096;
    // Upper bound of connections without an authenticated call; further ones are not accepted until some are
    // authenticated or ended.
    size_t unauthenticated = 128;
    // What an unauthenticated connection may send, including TLS and HTTP/2, and how long it may last; the
    // second time applies while `unauthenticated` is reached.
    int64_t unauthenticated_bytes = 256 << 10;
    absl::Duration patience = absl::Seconds(60);
    absl::Duration crowded_patience = absl::Seconds(2);
  };
  struct Counts {
    size_t connections = 0;
    size_t unauthenticated = 0;
    // Connections closed at once; and unauthenticated ones ended for the bytes they sent or the time they
    // lasted.
    uint64_t refused = 0;
    uint64_t dropped = 0;
  };

  // Listens; port 0: any free one. Names are resolved once, here, and all their addresses are used.
  // UNAVAILABLE when the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Bind(const Address& address, Limits limits);
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Bind(const Address& address) {
    return Bind(address, Limits());
  }
  ~ConnectionListener();
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;

  // The bound port.
  uint16_t port() const { return port_; }

  // Adds this port to the server that is being built. Handshakes (TLS, HTTP/2) may take 10 s.
  void AddTo(grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials);
  // Starts passing connections to the server. REQUIRES: AddTo was called and the server has started.
  void Serve();
  // Stops accepting. REQUIRED before the server is shut down.
  void Stop();

  // Records that a call of the connection from `peer` (grpc::ServerContext::peer) has been authenticated.
  void Authenticated(const std::string& peer);

  Counts counts() const;

 private:
  struct Connection {
    // This object's descriptor.
    int fd = -1;
    std::string peer, host;
    absl::Time accepted;
    bool authenticated = false;
    bool dropped = false;
  };

  ConnectionListener(std::vector<int> listeners, uint16_t port, Limits limits);

  void Run();
  void AcceptAll(int listener);
  // False when the connection is refused.
  bool Enter(int fd, const sockaddr_storage& from) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends unauthenticated connections that have sent too much or lasted too long.
  void DropUnauthenticated() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Crowded() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Upper bound of Run's sleep.
  int TimeoutMs() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  const std::vector<int> listeners_;
  const uint16_t port_;
  // The epoll descriptor, and the descriptor that wakes it.
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
