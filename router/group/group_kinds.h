// A group whose ranks meet in a collective at every step. What Group (group.h) leaves to its kinds: which
// rank delays the others, which rank the others cannot reach, and the deadlines of a step that all ranks make
// together. The ranks themselves report a failed barrier; a rank that reports nothing afterwards is left out
// of the next epoch. Ownership and threads: as Group.
#pragma once

#include <cstdint>

#include "router/core/scheduler/plan_delay.h"
#include "router/group/group.h"

namespace bfio::router {

class BarrierGroup final : public Group {
 public:
  BarrierGroup(const GroupOptions& options, core::Cluster* cluster, RequestBook* book)
      : Group(options, cluster, book) {}

 private:
  absl::Status CheckKind(const WorkerHello&) const override { return absl::OkStatus(); }
  void FillOffer(const Member& member, EpochOffer& offer) const override;
  absl::Duration FormTime() const override { return options_.form_timeout + kFormGrace; }
  void OnFormingFailed(const Context& context) override;
  void OnLateToForm(Member& member, const absl::Status& why, const Context& context) override;
  bool PrepareToForm(const Context& context) override;
  void ResetProgress() override { newest_step_ = 0; }
  void OnMissing(Member& member, absl::Span<const uint32_t> missing) override;
  void OnBarrierLost(const Context& context) override;
  void OnProgress(Member& member, const StepReport& report, const Context& context) override;
  void RecordStep(core::WorkerIndex rank, const StepReport& report, absl::Time now,
                  StepStatistics::Summaries& done) override;
  void RecordDecision(const core::Plan& plan, absl::Duration took, StepStatistics::Summaries& done) override;
  void OnOpened(absl::Time now) override;
  void OnClosed() override;
  bool PutsOffPlan(absl::Time now) const override { return now < plan_at_ && !force_; }
  bool TakeForce() override;
  int64_t ApplyStepOf(const core::Plan& plan, core::WorkerIndex rank) const override {
    return plan.apply_step;
  }
  void OnPlanSent(absl::Time now) override;
  void OnStepTimer(const Context& context) override;
  absl::Time step_deadline() const override;

  // Cuts off the ranks that others do not reach, and refuses them for a while. False: no rank is blamed, or
  // every rank is.
  bool PunishBlamed(const Context& context);
  // All ranks have reported one more step.
  void OnStepReported(absl::Time now);
  // Time at which a group that has work but reports no step counts as stuck.
  absl::Time StalledAt(absl::Time now) const { return now + 2 * options_.step_timeout; }

  // The newest step of this epoch that any rank has reported.
  int64_t newest_step_ = 0;
  // Consecutive attempts to form in which every rank answered and some rank failed.
  int failures_ = 0;
  // After a barrier failure: end of the time in which the ranks have to report it.
  absl::Time silence_end_ = absl::InfinitePast();
  // When the decision stops waiting for missing reports; infinite while none is missing.
  absl::Time report_deadline_ = absl::InfiniteFuture();
  absl::Time stall_deadline_ = absl::InfiniteFuture();
  // For the plans of this epoch: how long they may be put off; when the last step was complete, and its
  // number; the count of late plans when that step was complete.
  core::PlanDelay plan_delay_;
  absl::Time complete_at_ = absl::InfinitePast();
  int64_t complete_step_ = 0;
  int64_t late_plans_ = 0;
  // When the plan that is due is made; in the infinite past while none is put off.
  absl::Time plan_at_ = absl::InfinitePast();
  // report_deadline_ has passed: the next decision plans without the missing reports.
  bool force_ = false;
};

// A group whose ranks step independently (--coupling=none; chains of servers). Implements the parts of Group
// (group.h) that differ between kinds of groups. The ranks share epochs, but each steps alone. When the
// membership changes, every rank ends its step, and all continue together once the slowest has ended its own.
// A rank that takes several times as long as the longest step so far is left out. Ownership and threads: as
// Group.
class IndependentGroup final : public Group {
 public:
  IndependentGroup(const GroupOptions& options, core::Cluster* cluster, RequestBook* book)
      : Group(options, cluster, book) {}

 private:
  absl::Status CheckKind(const WorkerHello& hello) const override;
  void FillOffer(const Member& member, EpochOffer& offer) const override;
  absl::Duration FormTime() const override;
  void OnFormingFailed(const Context& context) override;
  void OnLateToForm(Member& member, const absl::Status& why, const Context& context) override;
  void OnProgress(Member& member, const StepReport& report, const Context& context) override;
  void RecordStep(core::WorkerIndex rank, const StepReport& report, absl::Time now,
                  StepStatistics::Summaries& done) override;
  void RecordDecision(const core::Plan& plan, absl::Duration took, StepStatistics::Summaries& done) override;
  int64_t ApplyStepOf(const core::Plan& plan, core::WorkerIndex rank) const override {
    return plan.apply_steps[static_cast<size_t>(rank)];
  }
  void OnPartSent(Member& member, absl::Time now) override;
};

}  // namespace bfio::router
