// A scheduler whose calls are recorded, if somebody wants them to be.
//
// Purpose: what the router's decision thread drives: core::Scheduler, with every call that may change
// something, and its answer, given to a Recorder in the order they were made. Without a recorder it is the
// scheduler. Threads: the scheduler's.
#ifndef BFIO_ROUTER_RECORD_RECORDED_SCHEDULER_H_
#define BFIO_ROUTER_RECORD_RECORDED_SCHEDULER_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "router/core/scheduler/scheduler.h"
#include "router/record/recorder.h"

namespace bfio::record {

class RecordedScheduler {
 public:
  using CancelOutcome = core::Scheduler::CancelOutcome;
  using WorkerAccount = core::Scheduler::WorkerAccount;
  using Totals = core::Scheduler::Totals;

  // `recorder` may be null; else it was made for these options, policy and lookahead.
  RecordedScheduler(const core::SchedulerOptions& options, std::unique_ptr<core::Policy> policy,
                    std::unique_ptr<core::Lookahead> lookahead, std::unique_ptr<Recorder> recorder)
      : scheduler_(options, std::move(policy), std::move(lookahead)), recorder_(std::move(recorder)) {}

  absl::Status Enqueue(const core::RequestSpec& request) {
    absl::Status status = scheduler_.Enqueue(request);
    Record([&](Recorder& recorder) { recorder.OnEnqueue(request, status); });
    return status;
  }
  void Requeue(const core::RequestSpec& request) {
    scheduler_.Requeue(request);
    Record([&](Recorder& recorder) { recorder.OnRequeue(request); });
  }
  CancelOutcome Cancel(core::RequestId id) {
    const CancelOutcome outcome = scheduler_.Cancel(id);
    if (outcome != CancelOutcome::kUnknown)
      Record([&](Recorder& recorder) { recorder.OnCancel(id, outcome); });
    return outcome;
  }
  std::vector<core::RequestId> OpenEpoch(const std::vector<core::EpochMember>& members) {
    std::vector<core::RequestId> displaced = scheduler_.OpenEpoch(members);
    Record([&](Recorder& recorder) { recorder.OnOpenEpoch(members, displaced); });
    return displaced;
  }
  void CloseEpoch() {
    scheduler_.CloseEpoch();
    Record([&](Recorder& recorder) { recorder.OnCloseEpoch(); });
  }
  void SetAcceptsNew(core::WorkerIndex worker, bool accepts_new) {
    scheduler_.SetAcceptsNew(worker, accepts_new);
    Record([&](Recorder& recorder) { recorder.OnAcceptsNew(worker, accepts_new); });
  }
  void SetTime(core::WorkerIndex worker, double time_per_token, double time_offset) {
    scheduler_.SetTime(worker, time_per_token, time_offset);
    Record([&](Recorder& recorder) { recorder.OnTime(worker, time_per_token, time_offset); });
  }
  void SetServiceTime(core::WorkerIndex worker, double service_time) {
    scheduler_.SetServiceTime(worker, service_time);
    Record([&](Recorder& recorder) { recorder.OnServiceTime(worker, service_time); });
  }
  absl::Status OnReport(core::WorkerIndex worker, const core::StepReport& report) {
    absl::Status status = scheduler_.OnReport(worker, report);
    Record([&](Recorder& recorder) {
      recorder.OnReport(worker, report, scheduler_.lookahead().uses_hints(), status);
    });
    return status;
  }
  std::optional<core::Plan> MakePlan(bool force = false) {
    if (recorder_ == nullptr || recorder_->stopped()) return scheduler_.MakePlan(force);
    const int64_t asked = scheduler_.totals().policy_calls;
    const absl::Time before = MonotonicNow();
    std::optional<core::Plan> plan = scheduler_.MakePlan(force);
    // A policy that was asked remembers it, plan or no plan.
    const bool was_asked = scheduler_.totals().policy_calls != asked;
    if (plan || was_asked) {
      const absl::Time now = MonotonicNow();
      const bool stopped_early = was_asked && scheduler_.policy().stopped_early();
      Record([&](Recorder& recorder) {
        recorder.OnPlan(force, plan ? &*plan : nullptr, stopped_early, now, now - before);
      });
    }
    return plan;
  }
  // `setting` is what `policy` was made from.
  void SetPolicy(std::unique_ptr<core::Policy> policy, const PolicySetting& setting) {
    scheduler_.SetPolicy(std::move(policy));
    Record([&](Recorder& recorder) { recorder.OnPolicy(setting); });
  }

  // Hands over what has been recorded: at the end of each of the decision thread's rounds.
  void FlushLog() {
    if (recorder_ != nullptr) recorder_->Flush();
  }
  // Nothing is recorded any more, though it should be.
  bool LogStopped() const { return recorder_ != nullptr && recorder_->stopped(); }
  // Ends the log.
  void CloseLog() { recorder_.reset(); }

  // --- views ---

  const core::Scheduler& core() const { return scheduler_; }
  const core::Policy& policy() const { return scheduler_.policy(); }
  const core::Lookahead& lookahead() const { return scheduler_.lookahead(); }
  WorkerAccount Account(core::WorkerIndex worker) const { return scheduler_.Account(worker); }
  int32_t num_workers() const { return scheduler_.num_workers(); }
  int64_t NextStep() const { return scheduler_.NextStep(); }
  int64_t waiting() const { return scheduler_.waiting(); }
  int64_t placed() const { return scheduler_.placed(); }
  std::optional<core::WorkerIndex> WorkerOf(core::RequestId id) const { return scheduler_.WorkerOf(id); }
  int64_t reported_step() const { return scheduler_.reported_step(); }
  bool ReportsMissing() const { return scheduler_.ReportsMissing(); }
  bool Parked() const { return scheduler_.Parked(); }
  const Totals& totals() const { return scheduler_.totals(); }

 private:
  template <typename F>
  void Record(F&& record) {
    if (recorder_ == nullptr || recorder_->stopped()) return;
    record(*recorder_);
    if (recorder_->SegmentIsFull()) recorder_->NextSegment(scheduler_.Save());
  }

  core::Scheduler scheduler_;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_RECORDED_SCHEDULER_H_
