// The router's HTTP port: the live page and /metrics (router/admin/live/live_page.h), authenticated like the
// admin API. Threads: OpenWeb from one thread. The server's threads query the decision thread and wait at
// most kWebPatience for its answer.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
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

// The HTTP port of a standby router: probes, and the metrics that distinguish it from the leader.
//
// Purpose: a standby has no other port, and monitoring must see that it is alive and does not lead.
//   /healthz   200 while it watches the election, 503 when it has not for kStandbyStuckAfter; a line
//              describes its state
//   /readyz    503: clients belong to the leader
//   /metrics   bfio:is_leader 0, version and uptime
// They contain no secrets, so callers are not authenticated. TLS is the admin API's. Threads:
// Standby any; OpenStandbyWeb from one thread.

// Longer than an election waits for etcd over all endpoints.
inline constexpr absl::Duration kStandbyStuckAfter = absl::Minutes(1);

// State of a standby.
class Standby {
 public:
  explicit Standby(std::string version) : version_(std::move(version)) {}

  // The standby has queried the election, or is about to.
  void MarkAlive(absl::Time now = MonotonicNow());
  void SetLeader(std::string leader);

  const std::string& version() const { return version_; }
  absl::Duration Uptime() const { return MonotonicNow() - started_; }
  // "standing by for the router at ..."; UNAVAILABLE when it has stopped querying the election.
  absl::StatusOr<std::string> Describe(absl::Time now) const;

 private:
  const std::string version_;
  const absl::Time started_ = MonotonicNow();
  mutable Mutex mutex_;
  std::string leader_ ABSL_GUARDED_BY(mutex_);
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = started_;
};

// Serves at `listen`, HOST:PORT. INVALID_ARGUMENT for a malformed address, UNAVAILABLE when it cannot be
// bound.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenStandbyWeb(const std::string& listen, const TlsFiles& tls,
                                                           std::shared_ptr<const Standby> standby);

}  // namespace bfio::router
