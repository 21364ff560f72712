// Turns the calls of a scheduler into records of the decision log.
//
// Purpose: encodes each event as it happens and hands the bytes to a sink, now and then a new segment. Cost:
// some hundred nanoseconds an event, no lock but in Flush. Once the sink has stopped, nothing. Threads: the
// scheduler's.
#ifndef BFIO_ROUTER_RECORD_RECORDER_H_
#define BFIO_ROUTER_RECORD_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/core/scheduler/scheduler.h"
#include "router/record/codec.h"
#include "router/record/log_sink.h"

namespace bfio::record {

// What a session is about, besides its events.
struct SessionInfo {
  std::string version;
  // Its ids will be near this one: they are written as differences to it.
  core::RequestId id_base = 0;
};

class Recorder {
 public:
  Recorder(std::unique_ptr<LogSink> sink, SessionInfo info, const core::SchedulerOptions& options,
           const PolicySetting& policy, absl::string_view lookahead);
  ~Recorder();

  void OnEnqueue(const core::RequestSpec& request, const absl::Status& status);
  void OnRequeue(const core::RequestSpec& request);
  void OnCancel(core::RequestId id, core::Scheduler::CancelOutcome outcome);
  void OnOpenEpoch(absl::Span<const core::EpochMember> members, absl::Span<const core::RequestId> displaced);
  void OnCloseEpoch();
  void OnAcceptsNew(core::WorkerIndex worker, bool accepts_new);
  void OnTime(core::WorkerIndex worker, double time_per_token, double time_offset);
  void OnServiceTime(core::WorkerIndex worker, double service_time);
  void OnReport(core::WorkerIndex worker, const core::StepReport& report, bool with_hints,
                const absl::Status& status);
  // `plan` is null when the policy was asked and none came of it.
  void OnPlan(bool force, const core::Plan* plan, bool stopped_early, absl::Time now, absl::Duration took);
  void OnPolicy(const PolicySetting& policy);

  // Nothing is recorded any more.
  bool stopped() const { return stopped_; }
  // The next event should come after NextSegment.
  bool SegmentIsFull() const { return segment_bytes_ >= sink_->segment_bytes() && !stopped_; }
  void NextSegment(core::SchedulerState state);

  // Hands over what has been recorded.
  void Flush();

 private:
  void BeginSegment(std::optional<core::SchedulerState> state);
  void Write(const v1::DecisionRecord& record);

  const std::unique_ptr<LogSink> sink_;
  v1::LoggedHeader header_;
  bool stopped_ = false;
  int64_t segment_bytes_ = 0;
  absl::Time last_plan_;
  // Kept, so that a record allocates nothing that one of its kind before it had.
  v1::DecisionRecord report_, plan_, arrival_, other_;
  std::string pending_;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_RECORDER_H_
