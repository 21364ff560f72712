// Keeps a rank's measurements, for scrapes at any time. Step loop and link record events; a reader gets a
// copy of the whole. Costs the step loop an uncontended lock, after its report is handed over. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/cost/online_fit.h"
#include "worker/engine/engine.h"
#include "worker/metrics/rank_telemetry.h"

namespace bfio::worker {

// State of a rank after a step.
struct RankState {
  int64_t free_kv_tokens = 0;
  int64_t held_requests = 0;
  // Requests preempted before the step because KV did not suffice.
  int64_t preempted = 0;
  // Requests that failed in the step (StepOutput::failed).
  int64_t failed = 0;
};

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

  // --- the process ---
  void OnStarted();
  // Limits of a chain's head; with several heads, of the one that began last.
  void OnLimits(const EngineLimits& limits);
  void OnLeaving();

  // --- the link ---
  void OnStreamUp();
  void OnStreamDown();
  // Tokens of a report that no router receives.
  void OnUndelivered(size_t tokens);

  // --- the step loop ---
  // REQUIRES: kept tokens have been reported to the router.
  void OnEpoch(bool formed);
  void OnEpochEnd();
  // Begins a task that may take `timeout`. `step` is not used for kForming.
  void OnTask(LoopTask task, int64_t step, absl::Duration timeout, absl::Time now = MonotonicNow());
  // After the cancellations between two epochs.
  void OnFreeKv(int64_t tokens);
  // `met`: the barrier succeeded. Otherwise only the step's requests count, not the step itself.
  void OnStep(const RankState& state, bool met);
  // New results of StepMeter.
  void OnCost(const StepCostEstimate& cost);
  void OnBarrierEnergy(double joules);

  RankTelemetry telemetry() const;
  // UNAVAILABLE, with a line that names the task in which the step loop is stuck.
  absl::Status Health(absl::Time now) const;

 private:
  mutable Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  // The task under way: of several loops that share this recorder, the task that began last.
  LoopTask task_ ABSL_GUARDED_BY(mutex_) = LoopTask::kWaiting;
  int64_t task_step_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration task_limit_ ABSL_GUARDED_BY(mutex_);
  absl::Time task_begun_ ABSL_GUARDED_BY(mutex_);
  // Without the phase, which `telemetry` derives.
  RankTelemetry telemetry_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
