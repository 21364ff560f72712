#include "worker/link/rank_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {

RankRecorder::RankRecorder(std::string worker_id, const EngineLimits& limits) {
  telemetry_.worker_id = std::move(worker_id);
  telemetry_.kv_tokens = telemetry_.free_kv_tokens = limits.kv_tokens;
}

void RankRecorder::OnStarted() {
  MutexLock lock(&mutex_);
  started_ = true;
}

void RankRecorder::OnLimits(const EngineLimits& limits) {
  MutexLock lock(&mutex_);
  telemetry_.kv_tokens = telemetry_.free_kv_tokens = limits.kv_tokens;
}

void RankRecorder::OnLeaving() {
  MutexLock lock(&mutex_);
  leaving_ = true;
}

void RankRecorder::OnStreamUp() {
  MutexLock lock(&mutex_);
  telemetry_.connected = true;
}

void RankRecorder::OnStreamDown() {
  MutexLock lock(&mutex_);
  telemetry_.connected = false;
}

void RankRecorder::OnUndelivered(size_t tokens) {
  MutexLock lock(&mutex_);
  telemetry_.undelivered_tokens += static_cast<int64_t>(tokens);
}

void RankRecorder::OnEpoch(bool formed) {
  MutexLock lock(&mutex_);
  if (!formed) {
    ++telemetry_.epochs_failed;
    return;
  }
  telemetry_.in_epoch = true;
  telemetry_.undelivered_tokens = 0;
}

void RankRecorder::OnEpochEnd() {
  MutexLock lock(&mutex_);
  telemetry_.in_epoch = false;
}

void RankRecorder::OnFreeKv(int64_t tokens) {
  MutexLock lock(&mutex_);
  telemetry_.free_kv_tokens = tokens;
}

void RankRecorder::OnStep(const RankState& state, bool met) {
  MutexLock lock(&mutex_);
  telemetry_.steps += met ? 1 : 0;
  telemetry_.preempted_requests += static_cast<uint64_t>(state.preempted);
  telemetry_.failed_requests += static_cast<uint64_t>(state.failed);
  telemetry_.free_kv_tokens = state.free_kv_tokens;
  telemetry_.held_requests = state.held_requests;
}

void RankRecorder::OnCost(const StepCostEstimate& cost) {
  MutexLock lock(&mutex_);
  telemetry_.cost = cost;
}

void RankRecorder::OnBarrierEnergy(double joules) {
  MutexLock lock(&mutex_);
  telemetry_.barrier_j = joules;
}

void RankRecorder::OnTask(LoopTask task, int64_t step, absl::Duration timeout, absl::Time now) {
  MutexLock lock(&mutex_);
  task_ = task;
  task_step_ = step;
  task_limit_ = std::max(kPatience * timeout, kLeastPatience);
  task_begun_ = now;
}

absl::Status RankRecorder::Health(absl::Time now) const {
  MutexLock lock(&mutex_);
  const absl::Duration took = now - task_begun_;
  if (task_ == LoopTask::kWaiting || took <= task_limit_) return absl::OkStatus();
  const std::string what = task_ == LoopTask::kForming ? "forming an epoch's barrier"
                           : task_ == LoopTask::kComputing
                               ? absl::StrCat("computing step ", task_step_)
                               : absl::StrCat("at the barrier of step ", task_step_);
  return absl::UnavailableError(absl::StrCat(telemetry_.worker_id, ": stuck ", what, " for ",
                                             absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(1))),
                                             "; the limit is ", absl::FormatDuration(task_limit_), "; ",
                                             telemetry_.steps, " steps completed"));
}

RankTelemetry RankRecorder::telemetry() const {
  MutexLock lock(&mutex_);
  RankTelemetry telemetry = telemetry_;
  if (leaving_) {
    telemetry.phase = RankPhase::kLeaving;
  } else if (telemetry.in_epoch) {
    telemetry.phase = RankPhase::kServing;
  } else if (telemetry.connected) {
    telemetry.phase = RankPhase::kJoined;
  } else {
    telemetry.phase = started_ ? RankPhase::kConnecting : RankPhase::kStarting;
  }
  return telemetry;
}

}  // namespace bfio::worker
