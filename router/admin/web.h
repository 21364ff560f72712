// The router's HTTP port: the live page and /metrics (router/admin/live/live_page.h), authenticated like the
// admin API. Threads: OpenWeb from one thread. The server's threads query the decision thread and wait at
// most kWebPatience for its answer.
#pragma once

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
// The probes fail when the decision thread has not looked at its events for this long.
inline constexpr absl::Duration kStuckAfter = absl::Seconds(15);

struct WebOptions {
  // HOST:PORT; port 0 picks a free one.
  std::string listen;
  TlsFiles tls;
  // Callers must present a token; false where the Authenticator has no tokens.
  bool authenticate = false;
  // Operators may also switch the policy, drain and undrain at this port.
  bool operates = true;
};

// UNAVAILABLE when the port cannot be bound. Handler and authenticator outlive the server.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWeb(const WebOptions& options, OperatorHandler* handler,
                                                    Authenticator* authenticator,
                                                    std::shared_ptr<const LiveHistory> history,
                                                    StateExtras extras = nullptr);

}  // namespace bfio::router
