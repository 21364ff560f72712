// A group whose ranks meet in a collective at every step.
//
// Purpose: what Group (group.h) leaves to it: which rank holds the others up, which rank the others do not
// reach, and the deadlines of a step that all make together. A barrier that fails is learnt from the ranks
// themselves; those that stay silent then are left out. Ownership and threads: as Group.
#ifndef BFIO_ROUTER_GROUP_BARRIER_GROUP_H_
#define BFIO_ROUTER_GROUP_BARRIER_GROUP_H_

#include <cstdint>

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
  bool TakeForce() override;
  int64_t ApplyStepOf(const core::Plan& plan, core::WorkerIndex rank) const override {
    return plan.apply_step;
  }
  void OnPlanSent(absl::Time now) override;
  void OnStepTimer(const Context& context) override;
  absl::Time step_deadline() const override;

  // The ranks that others do not reach are left out for a while. False: none is blamed, or all are.
  bool PunishBlamed(const Context& context);
  // When a group that should step and does not is taken to be stuck.
  absl::Time StalledAt(absl::Time now) const { return now + 2 * options_.step_timeout; }

  // The newest step of the epoch that some rank has reported.
  int64_t newest_step_ = 0;
  // Attempts to form in a row that failed though all answered.
  int failures_ = 0;
  // After a barrier's failure: until when the ranks may say so.
  absl::Time silence_end_ = absl::InfinitePast();
  // When patience for missing reports ends; infinite while none is missing.
  absl::Time report_deadline_ = absl::InfiniteFuture();
  absl::Time stall_deadline_ = absl::InfiniteFuture();
  // Patience has ended: the next decision plans without them.
  bool force_ = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_BARRIER_GROUP_H_
