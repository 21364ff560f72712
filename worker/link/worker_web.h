// A worker's HTTP port: /metrics for Prometheus, /healthz and /readyz for probes.
//
// Purpose: metrics only. The port takes no commands and shows no request's content, so it is unauthenticated
// plain text; bind it to the monitoring network. Under
//   /metrics   docs/metrics.md
//   /healthz   200 while every rank's step loop works or waits, from before the model is loaded. The body is
//              the state of the ranks, like "4 serving" or "1 joined (waiting for a group)". 503 when a step
//              loop is stuck (RankRecorder::Health), with the task: a restart is the remedy
//   /readyz    200 when, in addition, every rank is in an epoch and none leaves, otherwise 503; the same body
// Threads: OpenWorkerWeb from one thread; the server's threads read the recorders.
#ifndef BFIO_WORKER_LINK_WORKER_WEB_H_
#define BFIO_WORKER_LINK_WORKER_WEB_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "worker/link/rank_recorder.h"

namespace bfio::worker {

// Serves at `listen`, HOST:PORT. The recorders are borrowed. INVALID_ARGUMENT for a malformed address,
// UNAVAILABLE when it cannot be bound.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWorkerWeb(const std::string& listen, std::string version,
                                                          std::vector<const RankRecorder*> ranks);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_WORKER_WEB_H_
