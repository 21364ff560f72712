// The router's HTTP port: the live page and /metrics (router/admin/live/live_page.h), behind the admin API's
// gate.
//
// Threads: OpenWeb from one thread. The server's threads ask the decision thread and wait for it, at most
// kWebPatience.
#ifndef BFIO_ROUTER_ADMIN_WEB_H_
#define BFIO_ROUTER_ADMIN_WEB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"
#include "router/admin/live/history.h"
#include "router/app/decision_loop.h"
#include "router/app/options.h"
#include "router/frontend/gate.h"

namespace bfio::router {

inline constexpr absl::Duration kWebPatience = absl::Seconds(2);
// A decision thread that has not turned to its events for so long fails the probes.
inline constexpr absl::Duration kStuckAfter = absl::Seconds(15);

// Serves at options.http_listen with admin_tls and `gate`, both of which may be none. UNAVAILABLE when the
// port cannot be had. `loop` and `gate` outlive the server.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWeb(const RouterOptions& options, DecisionLoop* loop,
                                                    Gate* gate, std::shared_ptr<const LiveHistory> history);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_WEB_H_
