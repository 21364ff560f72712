// The scheduler of ranks that share no barrier: each counts its own steps and is idle by itself.
//
// A request that arrives is decided upon at once; a worker gets a plan when there is something for it. Such
// plans are numbered, not for a step: it applies all that have come at its next step boundary. The group's
// step is that of its mean rank: one more when as many reports have come as there are workers. Plan mode,
// late reports and chunks of prompts mean nothing here.
//
// Threads: as Scheduler.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_INDEPENDENT_SCHEDULER_H_
#define BFIO_ROUTER_CORE_SCHEDULER_INDEPENDENT_SCHEDULER_H_

#include <cstdint>
#include <optional>

#include "router/core/scheduler/scheduler.h"

namespace bfio::core {

class IndependentScheduler final : public Scheduler {
 public:
  using Scheduler::Scheduler;

  GroupKind kind() const override { return GroupKind::kIndependent; }
  bool ReportsMissing() const override { return false; }
  bool Parked() const override;
  int64_t Lead() const override { return 0; }

 private:
  std::optional<Plan> Decide(bool force, std::optional<DecisionMaker::Answer>& asked) override;
  int64_t PlannedStep(const GroupAccounts::Worker& worker) const override { return worker.planned_step; }
  bool Idle(const GroupAccounts::Worker& worker) const override {
    return worker.idle && worker.planned_step <= worker.applied;
  }
  void CountReport(int64_t step) override;
  int64_t ResetSteps() override;
  void SaveSteps(GroupState& state) const override;
  absl::Status RestoreSteps(const GroupState& state) override;

  // It waits for a plan to go on with what it holds.
  bool HeldUp(const GroupAccounts::Worker& worker) const { return Idle(worker) && worker.active > 0; }
  void SetSteps();

  // Of this epoch.
  int64_t reports_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_INDEPENDENT_SCHEDULER_H_
