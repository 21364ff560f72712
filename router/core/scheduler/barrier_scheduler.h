// The scheduler of ranks that meet in a barrier and step together.
//
// When plans are made (proto/bfio/v1/worker.proto describes the workers' side):
//   lockstep    a plan for step k+1 follows the reports of step k
//   pipelined   a plan for step k+2 follows the reports of step k; for k+1 when the group is idle
// An idle group with nothing to place gets no plan: it is parked until a request arrives.
//
// Threads: as Scheduler.
#pragma once

#include <cstdint>
#include <optional>

#include "router/core/scheduler/scheduler.h"

namespace bfio::core {

class BarrierScheduler final : public Scheduler {
 public:
  using Scheduler::Scheduler;

  bool ReportsMissing() const override { return arrived_ > 0; }
  bool Parked() const override { return GroupIdle() && TargetStep(false) > planned_step_; }
  int64_t Lead() const override { return planned_step_ - reported_step_; }

 private:
  std::optional<Plan> Decide(bool force, std::optional<DecisionMaker::Answer>& answer) override;
  int64_t PlannedStep(const GroupAccounts::Worker&) const override { return planned_step_; }
  bool Idle(const GroupAccounts::Worker& worker) const override {
    return worker.idle && planned_step_ <= worker.last_step;
  }
  void CountReport(int64_t step) override;
  int64_t ResetSteps() override;

  // True when, according to the reports of reported_step(), the workers wait for a plan.
  bool GroupIdle() const;
  int64_t TargetStep(bool force) const;
  void CountArrived();

  // Largest apply_step sent in this epoch.
  int64_t planned_step_ = 0;
  // Number of ranks that have reported step reported_step_ + 1.
  int32_t arrived_ = 0;
};

}  // namespace bfio::core
