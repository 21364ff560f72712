// The router's HTTP port: the live page and /metrics (router/admin/live/live_page.h), authenticated as the
// admin API.
//
// Threads: OpenWeb from one thread. The server's threads ask the decision thread and wait for it, at most
// kWebPatience.
#ifndef BFIO_ROUTER_ADMIN_WEB_H_
#define BFIO_ROUTER_ADMIN_WEB_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"
#include "common/net/authenticator.h"
#include "common/net/tls.h"
#include "router/admin/admin_service.h"
#include "router/admin/live/history.h"
#include "router/admin/operator_handler.h"

namespace bfio::router {

inline constexpr absl::Duration kWebPatience = absl::Seconds(2);
// A decision thread that has not turned to its events for so long fails the probes.
inline constexpr absl::Duration kStuckAfter = absl::Seconds(15);

struct WebOptions {
  // HOST:PORT; port 0 picks a free one.
  std::string listen;
  TlsFiles tls;
  // Callers have to show a token; what an Authenticator without tokens needs not ask for.
  bool authenticate = false;
  // Operators may switch the policy, drain and undrain here as well.
  bool operates = true;
};

// UNAVAILABLE when the port cannot be had. Handler and authenticator outlive the server.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWeb(const WebOptions& options, OperatorHandler* handler,
                                                    Authenticator* authenticator,
                                                    std::shared_ptr<const LiveHistory> history,
                                                    StateExtras extras = nullptr);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_WEB_H_
