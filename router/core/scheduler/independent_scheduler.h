// The scheduler of ranks whose steps the router does not time: each counts its own steps and is idle
// independently. A decision is made when a request arrives; only workers with changes get a plan, which has a
// number instead of a step. The group's step is that of its mean rank. Plan mode, late reports and chunked
// prompts do not apply here. Threads: as Scheduler.
//
// Coupled ranks (GroupKind::kCoupled) do step together, in a barrier inside their engine. So the policy also
// gets the prompts on them and sends further prompts by prefill_planner.h, and rules of placement are
// replayed once per step, which has ended when as many reports have arrived as ranks have requests. Where all
// ranks compute prompts up to levels (PrefillReport::metered), prompts are planned as for a barrier that the
// router times.
#pragma once

#include <cstdint>
#include <optional>

#include "router/core/scheduler/scheduler.h"

namespace bfio::core {

class IndependentScheduler final : public Scheduler {
 public:
  using Scheduler::Scheduler;

  bool ReportsMissing() const override { return false; }
  bool Parked() const override;
  int64_t Lead() const override { return 0; }

 private:
  std::optional<Plan> Decide(bool force, std::optional<DecisionMaker::Answer>& answer) override;
  int64_t PlannedStep(const GroupAccounts::Worker& worker) const override { return worker.planned_step; }
  bool Idle(const GroupAccounts::Worker& worker) const override {
    return worker.idle && worker.planned_step <= worker.applied;
  }
  void CountReport(int64_t step) override;
  int64_t ResetSteps() override;

  // Whether the worker waits for a plan before it continues with its requests.
  bool HeldUp(const GroupAccounts::Worker& worker) const { return Idle(worker) && worker.active > 0; }
  void SetSteps();
  bool coupled() const { return kind() == GroupKind::kCoupled; }

  // Number of reports in this epoch; for coupled ranks, in the present step.
  int64_t reports_ = 0;
  // For coupled ranks: requests placed in the present step.
  int64_t placed_in_step_ = 0;
  // For coupled ranks: the step in which the level was decided.
  int64_t level_step_ = 0;
};

}  // namespace bfio::core
