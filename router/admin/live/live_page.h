// The live page: what the group does, for people with a browser, and the few things they may do about it.
//
// Purpose: shows the barrier as no log does: the load of every worker over the last minutes, and what
// imbalance wastes. No assets from elsewhere. Under HTTP paths:
//   /  /live.css  /*.js         the page, without a figure in it; it asks for a token where one is needed
//   /healthz, /readyz           200 while the decision thread does its work, else 503. Workers need not be
//                               there: they come to the router by the way that readiness opens.
// and, behind the server's gate:
//   /metrics                    Prometheus (docs/metrics.md)
//   /api/state                  admin.proto's ClusterState as JSON
//   /api/page                   what the page shows of it (page_state.h)
//   /api/events?after=N         server-sent events: arrays of samples with numbers above N (history.h)
//   /api/policies               names of the policies that one may switch to here
// and, where the port operates:
//   POST /api/policy            PolicySetting as JSON
//   POST /api/drain             DrainWorkerRequest as JSON
//   POST /api/undrain           UndrainWorkerRequest as JSON
// Threads: the source's functions are called from the server's threads, at the same time.
#ifndef BFIO_ROUTER_ADMIN_LIVE_LIVE_PAGE_H_
#define BFIO_ROUTER_ADMIN_LIVE_LIVE_PAGE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bfio/v1/admin.pb.h"
#include "common/http/http_server.h"
#include "router/admin/live/history.h"

namespace bfio::router {

struct LiveSource {
  // An error when the decision thread does not do its work; asks nothing of it.
  std::function<absl::Status()> alive;
  // DEADLINE_EXCEEDED when the router is too busy to answer.
  std::function<absl::StatusOr<v1::ClusterState>()> state;
  // Null where the port is read-only. `who` is the caller's name in the log.
  std::function<absl::Status(const v1::PolicySetting&, const std::string& who)> set_policy;
  std::function<absl::Status(const std::string&worker_id, const std::string&who)> drain_worker,
      undrain_worker;
  // Empty where the port only shows.
  std::vector<std::string> policies;
};

// REQUIRES: before server.Start(). `history` is closed before the server ends.
void AddLivePage(HttpServer& server, std::shared_ptr<const LiveHistory> history, LiveSource source);

// A batch of samples as the page reads it.
std::string SamplesJson(const std::vector<std::shared_ptr<const StepSample>>& samples);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_LIVE_LIVE_PAGE_H_
