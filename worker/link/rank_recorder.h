// Keeps a rank's measurements, for scrapes at any time. Process, step loop and link record them; a reader
// gets a copy of the whole. Costs the step loop an uncontended lock, after its report is handed over.
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/engine/engine.h"
#include "worker/metrics/rank_telemetry.h"

namespace bfio::worker {

// What a step loop is doing.
enum class LoopTask {
  // Waits for a router, an epoch or a plan, without a limit.
  kWaiting,
  kForming,
  // The engine and its device compute.
  kComputing,
  // Waits for the other ranks at the step's barrier.
  kAtBarrier,
};

class RankRecorder {
 public:
  // A step loop is stuck when one task takes this multiple of the router's limit, and at least
  // kLeastPatience.
  static constexpr int kPatience = 3;
  static constexpr absl::Duration kLeastPatience = absl::Seconds(5);

  RankRecorder(std::string worker_id, const EngineLimits& limits);

  // Changes the measurements under the lock, but the phase, which follows from them.
  void Record(absl::FunctionRef<void(RankTelemetry&)> change);
  // The step loop begins a task that may take `timeout`. `step` is not used for kForming.
  void OnTask(LoopTask task, int64_t step, absl::Duration timeout, absl::Time now = MonotonicNow());

  RankTelemetry telemetry() const;
  // UNAVAILABLE, with a line that names the task in which the step loop is stuck.
  absl::Status Health(absl::Time now) const;

 private:
  mutable Mutex mutex_;
  // The task under way: of several loops that share this recorder, the task that began last.
  LoopTask task_ ABSL_GUARDED_BY(mutex_) = LoopTask::kWaiting;
  int64_t task_step_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration task_limit_ ABSL_GUARDED_BY(mutex_);
  absl::Time task_begun_ ABSL_GUARDED_BY(mutex_);
  // Without the phase, which `telemetry` derives.
  RankTelemetry telemetry_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
