#include "worker/link/rank_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {

RankRecorder::RankRecorder(std::string worker_id, const EngineLimits& limits) {
  telemetry_.worker_id = std::move(worker_id);
  telemetry_.kv_tokens = telemetry_.free_kv_tokens = limits.kv_tokens;
}

void RankRecorder::Record(absl::FunctionRef<void(RankTelemetry&)> change) {
  MutexLock lock(&mutex_);
  change(telemetry_);
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
  if (telemetry.leaving) {
    telemetry.phase = RankPhase::kLeaving;
  } else if (telemetry.in_epoch) {
    telemetry.phase = RankPhase::kServing;
  } else if (telemetry.connected) {
    telemetry.phase = RankPhase::kJoined;
  } else {
    telemetry.phase = telemetry.started ? RankPhase::kConnecting : RankPhase::kStarting;
  }
  return telemetry;
}

}  // namespace bfio::worker
