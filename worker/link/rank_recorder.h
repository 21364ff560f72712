// Keeps a rank's measurements, for scrapes at any time. Step loop and link record events; a reader gets a
// copy of the whole. Costs the step loop an uncontended lock and three bucket searches, after its report is
// handed over. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/engine/engine.h"
#include "worker/link/step_log.h"
#include "worker/metrics/rank_telemetry.h"

namespace bfio::worker {

// State of a rank after a step.
struct RankState {
  int64_t active_requests = 0;
  int64_t free_kv_tokens = 0;
  int64_t waiting_requests = 0;
  int64_t held_requests = 0;
  int64_t held_bytes = 0;
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
  void OnReportSent();
  void OnUnsent(size_t messages);
  // Tokens of a report that no router receives.
  void OnUndelivered(size_t tokens);

  // --- the step loop ---
  // REQUIRES: kept tokens have been reported to the router.
  void OnEpoch(uint64_t epoch, int32_t rank, int32_t ranks, bool formed);
  void OnEpochEnd();
  // Begins a task that may take `timeout`. `step` is not used for kForming.
  void OnTask(LoopTask task, int64_t step, absl::Duration timeout, absl::Time now = MonotonicNow());
  // State after the cancellations between two epochs.
  void OnResidents(int64_t active_requests, int64_t free_kv_tokens);
  // `met`: the barrier succeeded. Otherwise only the step's tokens and requests count, which the router still
  // receives, not the step itself.
  void OnStep(const StepRow& row, const RankState& state, bool met);
  // New results of StepMeter.
  void OnCost(const StepCostEstimate& cost);
  void OnEnergy(const EnergyReading& energy);

  RankTelemetry telemetry() const;
  // UNAVAILABLE, with a line that names the task in which the step loop is stuck.
  absl::Status Health(absl::Time now) const;

 private:
  mutable Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  // The task under way: of several loops that share this recorder, the task that began last.
  LoopTask task_ ABSL_GUARDED_BY(mutex_) = LoopTask::kWaiting;
  int64_t task_step_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration task_limit_ ABSL_GUARDED_BY(mutex_);
  absl::Time task_begun_ ABSL_GUARDED_BY(mutex_);
  // Without phase and reconnects, which `telemetry` derives.
  RankTelemetry telemetry_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
