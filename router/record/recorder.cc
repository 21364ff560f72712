#include "router/record/recorder.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "router/record/log_format.h"

namespace bfio::record {
namespace {

// Handed over at the latest when so much has come together.
constexpr size_t kFlushBytes = 64 << 10;

int32_t Code(const absl::Status& status) {
  return static_cast<int32_t>(status.code());
}

}  // namespace

Recorder::Recorder(std::unique_ptr<LogSink> sink, SessionInfo info, const core::SchedulerOptions& options,
                   const PolicySetting& policy, absl::string_view lookahead)
    : sink_(std::move(sink)) {
  header_.set_format(kFormat);
  header_.set_session(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  header_.set_version(std::move(info.version));
  header_.set_id_base(info.id_base);
  ToLog(options, *header_.mutable_options());
  ToLog(policy, *header_.mutable_policy());
  header_.set_lookahead(std::string(lookahead));
  BeginSegment(std::nullopt);
}

Recorder::~Recorder() {
  Flush();
  if (!stopped_) sink_->Close(v1::LoggedEnd::REASON_CLOSED);
}

void Recorder::BeginSegment(std::optional<core::SchedulerState> state) {
  header_.set_started_unix_us(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  last_plan_ = MonotonicNow();
  segment_bytes_ = 0;
  sink_->BeginSegment({header_, std::move(state)});
}

void Recorder::NextSegment(core::SchedulerState state) {
  Flush();
  header_.set_segment(header_.segment() + 1);
  BeginSegment(std::move(state));
}

void Recorder::Flush() {
  if (pending_.empty() || stopped_) return;
  segment_bytes_ += static_cast<int64_t>(pending_.size());
  stopped_ = !sink_->Append(pending_);
  pending_.clear();
}

void Recorder::Write(const v1::DecisionRecord& record) {
  if (stopped_) return;
  if (!AppendRecord(record, pending_)) {
    Flush();
    if (!stopped_) sink_->Close(v1::LoggedEnd::REASON_TOO_LARGE);
    stopped_ = true;
  } else if (pending_.size() >= kFlushBytes) {
    Flush();
  }
}

void Recorder::OnEnqueue(const core::RequestSpec& request, const absl::Status& status) {
  v1::LoggedArrival& out = *arrival_.mutable_enqueue();
  out.Clear();
  ToLog(request, header_.id_base(), *out.mutable_request());
  out.set_status(Code(status));
  Write(arrival_);
}

void Recorder::OnRequeue(const core::RequestSpec& request) {
  v1::LoggedArrival& out = *other_.mutable_requeue();
  out.Clear();
  ToLog(request, header_.id_base(), *out.mutable_request());
  Write(other_);
}

void Recorder::OnCancel(core::RequestId id, core::Scheduler::CancelOutcome outcome) {
  v1::LoggedCancel& out = *other_.mutable_cancel();
  out.Clear();
  out.set_id(IdOut(id, header_.id_base()));
  out.set_outcome(static_cast<int32_t>(outcome));
  Write(other_);
}

void Recorder::OnOpenEpoch(absl::Span<const core::EpochMember> members,
                           absl::Span<const core::RequestId> displaced) {
  v1::LoggedEpoch& out = *other_.mutable_open_epoch();
  out.Clear();
  ToLog(members, header_.id_base(), out);
  IdsOut(displaced, header_.id_base(), *out.mutable_displaced());
  Write(other_);
}

void Recorder::OnCloseEpoch() {
  other_.mutable_close_epoch();
  Write(other_);
}

void Recorder::OnAcceptsNew(core::WorkerIndex worker, bool accepts_new) {
  v1::LoggedAcceptsNew& out = *other_.mutable_accepts_new();
  out.set_rank(worker);
  out.set_accepts_new(accepts_new);
  Write(other_);
}

void Recorder::OnTime(core::WorkerIndex worker, double time_per_token, double time_offset) {
  v1::LoggedWorkerTime& out = *other_.mutable_worker_time();
  out.Clear();
  out.set_rank(worker);
  out.set_time_per_token(time_per_token);
  out.set_time_offset(time_offset);
  Write(other_);
}

void Recorder::OnServiceTime(core::WorkerIndex worker, double service_time) {
  v1::LoggedWorkerTime& out = *other_.mutable_worker_time();
  out.Clear();
  out.set_rank(worker);
  out.set_service_time(service_time);
  Write(other_);
}

void Recorder::OnReport(core::WorkerIndex worker, const core::StepReport& report, bool with_hints,
                        const absl::Status& status) {
  v1::LoggedReport& out = *report_.mutable_report();
  out.Clear();
  ToLog(worker, report, with_hints, header_.id_base(), out);
  out.set_status(Code(status));
  Write(report_);
}

void Recorder::OnPlan(bool force, const core::Plan* plan, bool stopped_early, absl::Time now,
                      absl::Duration took) {
  v1::LoggedPlan& out = *plan_.mutable_plan();
  out.Clear();
  out.set_force(force);
  out.set_none(plan == nullptr);
  out.set_stopped_early(stopped_early);
  if (plan != nullptr) ToLog(*plan, header_.id_base(), out);
  out.set_decide_ns(static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(took))));
  const int64_t after_us = absl::ToInt64Microseconds(now - last_plan_);
  out.set_after_us(static_cast<uint64_t>(std::max<int64_t>(0, after_us)));
  // Not `now`: what the division has cut off would add up.
  last_plan_ += absl::Microseconds(after_us);
  Write(plan_);
}

void Recorder::OnPolicy(const PolicySetting& policy) {
  header_.clear_policy();
  ToLog(policy, *header_.mutable_policy());
  *other_.mutable_set_policy() = header_.policy();
  Write(other_);
}

}  // namespace bfio::record
