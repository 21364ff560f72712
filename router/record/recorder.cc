#include "router/record/recorder.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "router/record/log_format.h"

namespace bfio::record {
namespace {

// Records are passed to the sink at this size at the latest.
constexpr size_t kFlushBytes = 64 << 10;

int32_t Code(const absl::Status& status) {
  return static_cast<int32_t>(status.code());
}

}  // namespace

Recorder::Recorder(std::unique_ptr<LogSink> sink, SessionInfo info, const core::SchedulerOptions& options,
                   const core::PolicySetting& policy, absl::string_view lookahead)
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
  Close();
}

void Recorder::Close() {
  if (std::exchange(closed_, true)) return;
  Flush();
  if (!stopped_) sink_->Close(v1::LoggedEnd::REASON_CLOSED);
}

// --- segments ---

void Recorder::BeginSegment(std::optional<core::ClusterState> state) {
  header_.set_started_unix_us(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  last_plan_ = MonotonicNow();
  segment_bytes_ = 0;
  sink_->BeginSegment({header_, std::move(state)});
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

// --- events ---

void Recorder::Before(const core::SchedulerEvent& event) {
  if (stopped_ || closed_ || !std::holds_alternative<core::MakePlan>(event)) return;
  decision_began_ = MonotonicNow();
}

void Recorder::After(const core::Cluster& cluster, const core::SchedulerEvent& event,
                     const core::Outcome& outcome) {
  if (stopped_ || closed_) return;
  std::visit([&](const auto& what) { Record(cluster, what, outcome); }, event);
  if (stopped_ || segment_bytes_ < sink_->segment_bytes()) return;
  Flush();
  header_.set_segment(header_.segment() + 1);
  BeginSegment(cluster.Save());
}

void Recorder::Record(const core::Cluster&, const core::AddGroup& event, const core::Outcome& outcome) {
  v1::LoggedAddGroup& out = *other_.mutable_add_group();
  out.set_group(event.group);
  out.set_kind(static_cast<int32_t>(event.kind));
  out.set_status(Code(outcome.status));
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::RemoveGroup& event, const core::Outcome& outcome) {
  v1::LoggedRemoveGroup& out = *other_.mutable_remove_group();
  out.Clear();
  out.set_group(event.group);
  IdsOut(outcome.displaced, header_.id_base(), *out.mutable_displaced());
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::Enqueue& event, const core::Outcome& outcome) {
  v1::LoggedArrival& out = *arrival_.mutable_enqueue();
  out.Clear();
  ToLog(event.request, header_.id_base(), *out.mutable_request());
  out.set_status(Code(outcome.status));
  Write(arrival_);
}

void Recorder::Record(const core::Cluster&, const core::Requeue& event, const core::Outcome& outcome) {
  v1::LoggedArrival& out = *other_.mutable_requeue();
  out.Clear();
  ToLog(event.request, header_.id_base(), *out.mutable_request());
  out.set_status(Code(outcome.status));
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::Cancel& event, const core::Outcome& outcome) {
  if (outcome.cancel == core::CancelOutcome::kUnknown) return;
  v1::LoggedCancel& out = *other_.mutable_cancel();
  out.set_id(IdOut(event.id, header_.id_base()));
  out.set_outcome(static_cast<int32_t>(outcome.cancel));
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::OpenEpoch& event, const core::Outcome& outcome) {
  v1::LoggedEpoch& out = *other_.mutable_open_epoch();
  out.Clear();
  out.set_group(event.group);
  out.set_model(event.model);
  ToLog(event.members, header_.id_base(), out);
  IdsOut(outcome.displaced, header_.id_base(), *out.mutable_displaced());
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::CloseEpoch& event, const core::Outcome&) {
  other_.mutable_close_epoch()->set_group(event.group);
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::SetAcceptsNew& event, const core::Outcome&) {
  v1::LoggedAcceptsNew& out = *other_.mutable_accepts_new();
  out.set_group(event.group);
  out.set_rank(event.worker);
  out.set_accepts_new(event.accepts_new);
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::SetTime& event, const core::Outcome&) {
  v1::LoggedWorkerTime& out = *other_.mutable_worker_time();
  out.Clear();
  out.set_group(event.group);
  out.set_rank(event.worker);
  out.set_time_per_token(event.time_per_token);
  out.set_time_offset(event.time_offset);
  out.set_prefill_time(event.prefill_time);
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::SetCost& event, const core::Outcome&) {
  v1::LoggedWorkerTime& out = *other_.mutable_worker_time();
  out.Clear();
  out.set_group(event.group);
  out.set_rank(event.worker);
  ToLog(event.cost, out);
  Write(other_);
}

void Recorder::Record(const core::Cluster&, const core::SetServiceTime& event, const core::Outcome&) {
  v1::LoggedWorkerTime& out = *other_.mutable_worker_time();
  out.Clear();
  out.set_group(event.group);
  out.set_rank(event.worker);
  out.set_service_time(event.service_time);
  Write(other_);
}

void Recorder::Record(const core::Cluster& cluster, const core::Report& event, const core::Outcome& outcome) {
  v1::LoggedReport& out = *report_.mutable_report();
  out.Clear();
  out.set_group(event.group);
  ToLog(event.worker, event.report, cluster.lookahead().uses_hints(), header_.id_base(), out);
  out.set_status(Code(outcome.status));
  Write(report_);
}

void Recorder::Record(const core::Cluster&, const core::MakePlan& event, const core::Outcome& outcome) {
  // A policy that was called has changed its state, even if there is no plan.
  if (!outcome.plan && !outcome.policy_called) return;
  const absl::Time now = MonotonicNow();
  v1::LoggedPlan& out = *plan_.mutable_plan();
  out.Clear();
  out.set_group(event.group);
  out.set_force(event.force);
  out.set_none(!outcome.plan);
  out.set_stopped_early(outcome.stopped_early);
  if (outcome.rule) out.set_placement_rule(static_cast<int32_t>(*outcome.rule));
  if (outcome.plan) ToLog(*outcome.plan, header_.id_base(), out);
  const int64_t took_ns = absl::ToInt64Nanoseconds(now - decision_began_);
  out.set_decide_ns(static_cast<uint64_t>(std::max<int64_t>(0, took_ns)));
  const int64_t after_us = absl::ToInt64Microseconds(now - last_plan_);
  out.set_after_us(static_cast<uint64_t>(std::max<int64_t>(0, after_us)));
  // Not set to `now`, because rounding errors of the division would add up.
  last_plan_ += absl::Microseconds(after_us);
  Write(plan_);
}

void Recorder::Record(const core::Cluster&, const core::SetPolicy& event, const core::Outcome& outcome) {
  if (!outcome.status.ok()) return;
  header_.clear_policy();
  ToLog(event.setting, *header_.mutable_policy());
  *other_.mutable_set_policy() = header_.policy();
  Write(other_);
}

}  // namespace bfio::record
