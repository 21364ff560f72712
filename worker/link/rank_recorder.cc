#include "worker/link/rank_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

double Seconds(int64_t ns) {
  return 1e-9 * static_cast<double>(ns);
}

}  // namespace

RankRecorder::RankRecorder(std::string worker_id, const EngineLimits& limits) {
  telemetry_.worker_id = std::move(worker_id);
  telemetry_.slots = limits.slots;
  telemetry_.kv_tokens = telemetry_.free_kv_tokens = limits.kv_tokens;
}

void RankRecorder::OnStarted() {
  MutexLock lock(&mutex_);
  started_ = true;
}

void RankRecorder::OnLimits(const EngineLimits& limits) {
  MutexLock lock(&mutex_);
  telemetry_.slots = limits.slots;
  telemetry_.kv_tokens = telemetry_.free_kv_tokens = limits.kv_tokens;
}

void RankRecorder::OnLeaving() {
  MutexLock lock(&mutex_);
  leaving_ = true;
}

void RankRecorder::OnStreamUp() {
  MutexLock lock(&mutex_);
  telemetry_.connected = true;
  ++streams_;
}

void RankRecorder::OnStreamDown() {
  MutexLock lock(&mutex_);
  telemetry_.connected = false;
  telemetry_.unsent_messages = 0;
}

void RankRecorder::OnReportSent() {
  MutexLock lock(&mutex_);
  ++telemetry_.reports_sent;
}

void RankRecorder::OnUnsent(size_t messages) {
  MutexLock lock(&mutex_);
  telemetry_.unsent_messages = static_cast<int64_t>(messages);
}

void RankRecorder::OnUndelivered(size_t tokens) {
  MutexLock lock(&mutex_);
  telemetry_.undelivered_tokens += static_cast<int64_t>(tokens);
}

void RankRecorder::OnEpoch(uint64_t epoch, int32_t rank, int32_t ranks, bool formed) {
  MutexLock lock(&mutex_);
  ++(formed ? telemetry_.epochs_formed : telemetry_.epochs_failed);
  if (!formed) return;
  telemetry_.epoch = epoch;
  telemetry_.rank = rank;
  telemetry_.ranks = ranks;
  telemetry_.undelivered_tokens = 0;
}

void RankRecorder::OnEpochEnd() {
  MutexLock lock(&mutex_);
  telemetry_.epoch = 0;
  telemetry_.rank.reset();
  telemetry_.ranks = 0;
  telemetry_.waiting_requests = 0;
}

void RankRecorder::OnResidents(int64_t active_requests, int64_t free_kv_tokens) {
  MutexLock lock(&mutex_);
  telemetry_.active_requests = active_requests;
  telemetry_.free_kv_tokens = free_kv_tokens;
  if (active_requests == 0) telemetry_.load_tokens = 0;
}

void RankRecorder::OnStep(const StepRow& row, const RankState& state, bool met) {
  MutexLock lock(&mutex_);
  telemetry_.generated_tokens += static_cast<uint64_t>(row.active);
  telemetry_.prefill_tokens += static_cast<uint64_t>(row.prefill_tokens);
  telemetry_.finished_requests += static_cast<uint64_t>(row.finished);
  telemetry_.preempted_requests += static_cast<uint64_t>(state.preempted);
  telemetry_.failed_requests += static_cast<uint64_t>(state.failed);
  telemetry_.load_tokens = row.load_tokens;
  telemetry_.active_requests = state.active_requests;
  telemetry_.free_kv_tokens = state.free_kv_tokens;
  telemetry_.waiting_requests = state.waiting_requests;
  telemetry_.held_requests = state.held_requests;
  telemetry_.held_bytes = state.held_bytes;
  if (!met) return;
  ++telemetry_.steps;
  telemetry_.local_s.Add(Seconds(row.local_ns));
  telemetry_.barrier_wait_s.Add(Seconds(row.barrier_wait_ns));
  if (row.gap_ns.has_value()) telemetry_.gap_s.Add(Seconds(*row.gap_ns));
}

void RankRecorder::OnCost(const StepCostEstimate& cost) {
  MutexLock lock(&mutex_);
  telemetry_.cost = cost;
}

void RankRecorder::OnEnergy(const EnergyReading& energy) {
  MutexLock lock(&mutex_);
  telemetry_.energy = energy;
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
  telemetry.reconnects = streams_ == 0 ? 0 : streams_ - 1;
  if (leaving_) {
    telemetry.phase = RankPhase::kLeaving;
  } else if (telemetry.epoch != 0) {
    telemetry.phase = RankPhase::kServing;
  } else if (telemetry.connected) {
    telemetry.phase = RankPhase::kJoined;
  } else {
    telemetry.phase = started_ ? RankPhase::kConnecting : RankPhase::kStarting;
  }
  return telemetry;
}

}  // namespace bfio::worker
