// A group whose ranks step independently (--coupling=none; chains of servers). Implements the parts of Group
// (group.h) that differ between kinds of groups. The ranks share epochs, but each steps alone. When the
// membership changes, every rank ends its step, and all continue together once the slowest has ended its own.
// A rank that takes several times as long as the longest step so far is left out. Ownership and threads: as
// Group.
#pragma once

#include <cstdint>

#include "router/group/group.h"

namespace bfio::router {

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
