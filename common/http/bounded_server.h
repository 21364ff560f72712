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

#include <memory>

#include "common/http/awaited_requests.h"
#include "common/http/connection.h"

namespace bfio {

class BoundedServer final : public httplib::Server {
 public:
  // `at_once`: connections that are served, in shares of their addresses; `endless`: those beside them that
  // send endless replies (HttpConnection::LeaveTurn), which the owner bounds. Plain text if `tls` is null.
  BoundedServer(const ConnectionLimits& limits, int at_once, int endless, std::unique_ptr<ReloadedTls> tls);

  // Call after binding: many clients may connect at once, and httplib lets only five of them wait in the
  // kernel.
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
