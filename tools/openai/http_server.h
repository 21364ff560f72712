// httplib's server over connections with bounds (connection.h).
//
// Purpose: how a connection is served, from its first request to its close; nothing about what is served.
// Threads: Serve on one; connections on the pool's.
#ifndef BFIO_TOOLS_OPENAI_HTTP_SERVER_H_
#define BFIO_TOOLS_OPENAI_HTTP_SERVER_H_

#include <memory>

#include "tools/openai/connection.h"

namespace bfio::openai {

class BoundedServer final : public httplib::Server {
 public:
  // Plain text without `tls`.
  BoundedServer(const ConnectionLimits& limits, int max_connections, std::unique_ptr<ReloadedTls> tls);

  // After binding: many clients may come at once, and httplib lets the kernel keep five of them waiting.
  void WidenBacklog();

  // Any thread.
  const PoolLoad& load() const { return *load_; }

 private:
  bool process_and_close_socket(socket_t socket) override;
  // Nothing when no handshake comes about.
  std::unique_ptr<TlsSession> ShakeHands(int socket);
  // Requests until the connection ends.
  bool Serve(Connection& connection);
  bool AwaitRequest(Connection& connection, absl::Duration patience);

  const ConnectionLimits limits_;
  const std::unique_ptr<ReloadedTls> tls_;
  const std::shared_ptr<PoolLoad> load_ = std::make_shared<PoolLoad>();
};

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_HTTP_SERVER_H_
