// The live page: shows what the groups do in a browser, and lets operators act.
//
// Purpose: shows what no log shows: the load of every worker over the last minutes, and the time that
// imbalance wastes. Uses no assets from other hosts. HTTP paths without authentication:
//   /  /live.css  /*.js         the page, without any data; it has an input for the token where one is
//   required
//   /healthz, /readyz           200 while the decision thread makes progress, else 503. They do not require
//                               workers, because workers may reach the router only once it is ready. /readyz
//                               is also 503 from a requested stop on, so that load balancers send no new
//                               requests; /healthz stays 200, so that nothing ends the requests that still
//                               run.
// with authentication:
//   /metrics                    Prometheus (docs/reference/metrics.md)
//   /api/state                  admin.proto's ClusterState as JSON
//   /api/page                   the part of it that the page shows (PageState)
//   /api/events?after=N         server-sent events: arrays of samples with numbers above N (history.h)
//   /api/policies               names of the policies that can be selected here
// and, where the port operates:
//   POST /api/policy            PolicySetting as JSON
//   POST /api/drain             DrainWorkerRequest as JSON
//   POST /api/undrain           UndrainWorkerRequest as JSON
// Threads: the source's functions are called from the server's threads, concurrently.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bfio/v1/admin.pb.h"
#include "common/http/http_server.h"
#include "router/admin/live/history.h"

namespace bfio::router {

// The part of a cluster's state that the live page shows, as JSON. Every open page requests the state every
// two seconds. Protobuf's JSON of a ClusterState with hundreds of workers takes tens of milliseconds of CPU
// time; this subset takes a fraction of that. Names are those of protobuf's JSON (/api/state); numbers are
// JSON numbers. Pure.
std::string PageStateJson(const v1::ClusterState& state);

struct LiveSource {
  // An error when the decision thread makes no progress; does not wait for that thread.
  std::function<absl::Status()> alive;
  // The same, and an error when the router accepts no new requests because it stops.
  std::function<absl::Status()> ready;
  // DEADLINE_EXCEEDED when the router is too busy to answer.
  std::function<absl::StatusOr<v1::ClusterState>()> state;
  // Null where the port is read-only. `who`: the caller's name in the log.
  std::function<absl::Status(const v1::PolicySetting&, const std::string& who)> set_policy;
  std::function<absl::Status(const std::string&worker_id, const std::string&who)> drain_worker,
      undrain_worker;
  // Empty where the port is read-only.
  std::vector<std::string> policies;
};

// REQUIRES: called before server.Start(). Close `history` before the server ends.
void AddLivePage(HttpServer& server, std::shared_ptr<const LiveHistory> history, LiveSource source);

// A batch of samples as JSON for the page.
std::string SamplesJson(const std::vector<std::shared_ptr<const StepSample>>& samples);

}  // namespace bfio::router
