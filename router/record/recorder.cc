#include "router/record/recorder.h"

#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "router/record/log_format.h"

namespace bfio::record {
namespace {

// Records are passed to the sink at this size at the latest.
constexpr size_t kFlushBytes = 64 << 10;

bool HasEffect(const core::SchedulerEvent& event, const core::Outcome& outcome) {
  if (std::holds_alternative<core::Cancel>(event)) return outcome.cancel != core::CancelOutcome::kUnknown;
  if (std::holds_alternative<core::SetPolicy>(event)) return outcome.status.ok();
  // A policy that was called has changed its state, even if there is no plan.
  if (std::holds_alternative<core::MakePlan>(event)) return outcome.plan || outcome.policy_called;
  return true;
}

}  // namespace

Recorder::Recorder(std::unique_ptr<LogSink> sink, SessionInfo info, const core::SchedulerOptions& options,
                   const core::PolicySetting& policy, absl::string_view lookahead)
    : sink_(std::move(sink)),
      header_{.session = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())),
              .version = std::move(info.version),
              .id_base = info.id_base,
              .options = options,
              .policy = policy,
              .lookahead = std::string(lookahead)},
      began_(MonotonicNow()) {
  BeginSegment();
}

Recorder::~Recorder() {
  Close();
}

void Recorder::Close() {
  if (std::exchange(closed_, true)) return;
  Flush();
  if (!stopped_) sink_->Close(LogEnd::kClosed);
}

void Recorder::BeginSegment() {
  header_.started_unix_us = absl::ToUnixMicros(absl::Now());
  segment_bytes_ = 0;
  sink_->BeginSegment(header_);
}

void Recorder::Flush() {
  if (pending_.empty() || stopped_) return;
  segment_bytes_ += static_cast<int64_t>(pending_.size());
  stopped_ = !sink_->Append(pending_);
  pending_.clear();
}

void Recorder::Before(const core::SchedulerEvent& event) {
  if (stopped_ || closed_ || !std::holds_alternative<core::MakePlan>(event)) return;
  decision_began_ = MonotonicNow();
}

void Recorder::After(const core::Cluster& cluster, const core::SchedulerEvent& event,
                     const core::Outcome& outcome) {
  if (stopped_ || closed_ || !HasEffect(event, outcome)) return;
  EventTimes times;
  if (std::holds_alternative<core::MakePlan>(event)) {
    const absl::Time now = MonotonicNow();
    times = {absl::ToInt64Microseconds(now - began_), absl::ToInt64Nanoseconds(now - decision_began_)};
  }
  if (const auto* set = std::get_if<core::SetPolicy>(&event)) header_.policy = set->setting;
  record_.clear();
  Encode(event, outcome, times, header_.id_base, cluster.lookahead().uses_hints(), record_);
  if (record_.size() > kMaxRecordBytes) {
    Flush();
    if (!stopped_) sink_->Close(LogEnd::kTooLarge);
    stopped_ = true;
    return;
  }
  AppendRecord(record_, pending_);
  if (pending_.size() >= kFlushBytes) Flush();
  if (stopped_ || segment_bytes_ < sink_->segment_bytes()) return;
  Flush();
  ++header_.segment;
  BeginSegment();
}

}  // namespace bfio::record
