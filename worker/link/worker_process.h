// The shared parts of a worker process: engines, log of steps, metrics port. Creates ranks. Threads: one, and
// the HTTP server's; outlives the ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/factory.h"
#include "worker/energy/energy_monitor.h"
#include "worker/engine/engine.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/step_log.h"
#include "worker/link/step_loop.h"
#include "worker/link/worker.h"

namespace bfio::worker {

// A worker's HTTP port. It takes no commands and shows no request's content, so it is unauthenticated plain
// text; bind it to the monitoring network.
//   /metrics   docs/reference/metrics.md
//   /healthz   200 while every rank's step loop works or waits, from before the model is loaded; the body is
//              the ranks' state. 503 when a loop is stuck (RankRecorder::Health): a restart is the remedy.
//   /readyz    200 when, in addition, every rank is in an epoch and none leaves; the same body.
// Serves at `listen`, HOST:PORT. Threads: one calls it; the server's read the recorders. The recorders are
// borrowed. INVALID_ARGUMENT for a malformed address, UNAVAILABLE when it cannot be bound.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWorkerWeb(const std::string& listen, std::string version,
                                                          std::vector<const RankRecorder*> ranks);

// The parts of a rank's step loop.
struct RankParts {
  StepLoopOptions loop;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BarrierEndpoint> endpoint;
  // Outlives the loop; null where none is metered.
  std::unique_ptr<EnergyMonitor> energy;
};

// How a rank's engine differs from those of the process's other ranks.
struct RankModel {
  // Digest of what it computes.
  std::string digest;
  // Expected time of a mean request in seconds; 0: not known.
  double service_s = 0;
};

class WorkerProcess {
 public:
  // Answers probes from now on. INVALID_ARGUMENT or UNAVAILABLE, naming the flag. `options` outlives it.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Open(const WorkerOptions& options);

  // All ranks of the process, which share a model's weights.
  absl::StatusOr<std::vector<RankParts>> MakeRanks();
  // A rank with its own engine, recorded as rank `index` of the process.
  absl::StatusOr<RankParts> MakeRank(std::string id, int index, std::unique_ptr<Engine> engine,
                                     RankModel model);
  RankRecorder& recorder(int index) { return *recorders_[static_cast<size_t>(index)]; }

 private:
  explicit WorkerProcess(const WorkerOptions& options) : options_(options) {}

  const WorkerOptions& options_;
  std::vector<std::unique_ptr<RankRecorder>> recorders_;
  std::unique_ptr<HttpServer> web_;
  // Null: steps are not logged.
  std::unique_ptr<StepLog> log_;
  const std::shared_ptr<LocalHub> hub_ = std::make_shared<LocalHub>();
};

// Counts the ranks that are still running. Threads: any.
class RunningRanks {
 public:
  explicit RunningRanks(int running) : running_(running) {}

  void OnEnd(const absl::Status& status) {
    MutexLock lock(&mutex_);
    --running_;
    if (status_.ok()) status_ = status;
  }
  bool AllEndedWithin(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const auto none = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
  }
  // The first error.
  absl::Status status() {
    MutexLock lock(&mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
