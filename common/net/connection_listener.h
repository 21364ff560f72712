// A listening port of a gRPC server whose connections are bounded from the first byte on.
//
// Purpose: gRPC accepts every connection, and what it buffers of a connection before authentication is
// unbounded (for example in the header parser of version 1.51). So connections are accepted here, and passed
// to gRPC, which does TLS and HTTP/2, when they have sent something, or while it has few. One counts as
// authenticated once a call on it is (Authenticated). Until then it may send at most `unauthenticated_bytes`
// and last for `patience`, and gRPC has a bounded number of such connections, of each address its share; of
// the others the newest is next. A connection that begins too many calls ends. Connections to a lost host are
// ended by TCP keepalive. Ownership: gRPC owns the sockets; this object has a second descriptor of each, to
// see its end and to end it: two for each connection, for which InitProgram raises the limit. Threads: Bind,
// Serve, Stop and destruction from one thread; the others from any.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/base/token_bucket.h"
#include "common/base/waker.h"
#include "common/telemetry/line_limiter.h"

namespace bfio {

class ConnectionListener {
 public:
  struct Limits {
    // Upper bound of connections, of which each address has its share. Further ones are closed at once.
    int64_t connections = 8192;
    // Upper bounds of connections without an authenticated call: those that gRPC has, and those that have
    // sent nothing or wait. Beyond an address's share of the latter, its oldest ends.
    int64_t unauthenticated = 128, outside = 2048;
    // What an unauthenticated connection may send, including TLS and HTTP/2, and how long it may last; the
    // second time applies while others of its address wait for its place.
    int64_t unauthenticated_bytes = 256 << 10;
    // The same of all of them; beyond it those that have sent the most end. GRPC 1.51 holds 60 bytes for a
    // header that HPACK encodes in one.
    int64_t unauthenticated_sum = 1 << 20;
    absl::Duration patience = absl::Seconds(60);
    absl::Duration crowded_patience = absl::Seconds(2);
    // New calls of a connection per second, and at once; before it is authenticated, calls in all. A call
    // that is begun and reset costs gRPC 14 KB until the router's threads have seen it.
    double calls_per_s = 4096, calls_at_once = 4096;
    int unauthenticated_calls = 256;
    // What a connection, and all together, may have sent of messages that have not arrived completely
    // (Arrived). GRPC 1.51 receives messages of any announced size before it refuses them.
    int64_t incomplete_bytes = 64 << 20, incomplete_sum = 128 << 20;
  };
  struct Counts {
    size_t connections = 0;
    size_t unauthenticated = 0;
    // Connections closed at once; and those ended for the bytes or calls they sent or the time they lasted.
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

  // Records that a call of the connection from `peer` (grpc::ServerContext::peer) has been authenticated. A
  // gateway's connection may begin any number of calls: they are counted by tenant (Authenticator).
  void Authenticated(const std::string& peer, bool gateway = false);
  // Counts a new call of the connection from `peer`, and ends the connection beyond its bound.
  void OnCall(const std::string& peer);

  // A message of the connection from `peer` has arrived. From the first one on its incomplete ones are
  // bounded.
  void Arrived(const std::string& peer, int64_t bytes);

  // Bytes that the connection from `peer` has sent; 0 if there is none.
  int64_t Received(const std::string& peer) const;

  Counts counts() const;

 private:
  struct Connection {
    // This object's descriptor, and gRPC's until it is passed on.
    int fd = -1, own = -1;
    int listener = -1;
    std::string peer, host;
    absl::Time accepted;
    TokenBucket calls;
    int unknown_calls = 0;
    // Of its bytes those of messages that have arrived.
    int64_t arrived = 0;
    enum class Place { kSilent, kWaiting, kPassed, kAuthenticated } place = Place::kSilent;
    bool gateway = false;
    bool dropped = false;
  };

  ConnectionListener(std::vector<int> listeners, uint16_t port, Limits limits);

  void Run();
  void AcceptAll(int listener);
  // False when the connection is refused.
  bool Enter(int fd, int listener, const sockaddr_storage& from) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // The connection has sent its first bytes.
  void OnBytes(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Passes connections to gRPC as far as their addresses' shares reach.
  void PassOn() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends unauthenticated connections that have sent too much or lasted too long.
  void DropUnauthenticated() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the connections whose incomplete messages are too large.
  void DropIncomplete() ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(Connection& connection, absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Upper bound of Run's sleep.
  int TimeoutMs() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  const std::vector<int> listeners_;
  const uint16_t port_;
  // The epoll descriptor.
  int poll_ = -1;
  const Waker wake_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::thread thread_;

  RefusalLog refusals_;
  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint64_t> by_peer_ ABSL_GUARDED_BY(mutex_);
  FairShares all_ ABSL_GUARDED_BY(mutex_);
  // Connections without an authenticated call, oldest first, and the shares of them: those outside gRPC, of
  // which some have sent something (waiting_), and those that gRPC has.
  std::vector<uint64_t> outside_ ABSL_GUARDED_BY(mutex_), waiting_ ABSL_GUARDED_BY(mutex_),
      unauthenticated_ ABSL_GUARDED_BY(mutex_);
  // Those that have sent messages which are counted.
  std::vector<uint64_t> counted_ ABSL_GUARDED_BY(mutex_);
  FairShares outside_shares_ ABSL_GUARDED_BY(mutex_), shares_ ABSL_GUARDED_BY(mutex_);
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0, dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio
