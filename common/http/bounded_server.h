// httplib's server over connections with bounds (connection.h).
//
// Purpose: how a connection is served, from its first request to its close; nothing about what is served.
// http_server.h and tools/openai build on it. Ownership: owns the TLS files; the handlers' owner outlives
// listen_after_bind. Threads: listen_after_bind on one of the owner's; connections, and so handlers, on the
// pool's.
#ifndef BFIO_COMMON_HTTP_BOUNDED_SERVER_H_
#define BFIO_COMMON_HTTP_BOUNDED_SERVER_H_

#include <memory>

#include "common/http/connection.h"

namespace bfio {

class BoundedServer final : public httplib::Server {
 public:
  // Plain text without `tls`.
  BoundedServer(const ConnectionLimits& limits, int max_connections, std::unique_ptr<ReloadedTls> tls);

  // After binding: many clients may come at once, and httplib lets the kernel keep five of them waiting.
  void WidenBacklog();

  // In place of stop(): open connections are dropped, too. REQUIRES: it listens. Any thread, as
  // what follows.
  void Stop();
  const PoolLoad& load() const { return *state_.load; }
  // From when the server is asked to stop, or loses its port, until Reopened: connections are ended.
  bool ending() const { return state_.ending; }
  // It is bound again, and will listen.
  void Reopened() { state_.ending = false; }

 private:
  bool process_and_close_socket(socket_t socket) override;
  // Nothing when the handshake fails.
  std::unique_ptr<TlsSession> ShakeHands(int socket);
  // Requests until the connection ends.
  bool Serve(HttpConnection& connection);
  bool AwaitRequest(HttpConnection& connection, absl::Duration patience);

  const ConnectionLimits limits_;
  const std::unique_ptr<ReloadedTls> tls_;
  // The socket that was bound last; httplib's.
  int listener_ = -1;
  ServerState state_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_BOUNDED_SERVER_H_
