#include "router/core/scheduler/independent_scheduler.h"

#include <algorithm>

namespace bfio::core {

bool IndependentScheduler::Parked() const {
  const absl::Span<const GroupAccounts::Worker> workers = accounts_.workers();
  return open_ && std::all_of(workers.begin(), workers.end(),
                              [&](const GroupAccounts::Worker& worker) { return Idle(worker); });
}

void IndependentScheduler::SetSteps() {
  steps_.step = reported_step_ + 1;
  steps_.reported = reported_step_;
  steps_.clock = ClockAt(steps_.step);
  steps_.level = coupled() && steps_.step != level_step_ && accounts_.AllMetered();
  steps_.targets.clear();
  steps_.numbers.clear();
  for (const GroupAccounts::Worker& worker : accounts_.workers()) {
    const int64_t target = worker.last_step + (Idle(worker) ? 1 : 2);
    steps_.targets.push_back(target);
    steps_.numbers.push_back(std::max(target, worker.planned_step + 1));
  }
}

std::optional<Plan> IndependentScheduler::Decide(bool, std::optional<DecisionMaker::Answer>& answer) {
  SetSteps();
  // Batches need a common step; without one requests do not wait for a batch.
  totals_.held_back += pool_->ReleaseBatches(steps_.clock, true);
  Plan plan;
  plan.apply_step = steps_.step;
  // Groups with a barrier get one decision per step; here decisions follow every event.
  answer = DecideAndRecord(steps_, plan);
  // If the policy was not called there is no decision, and the log need not contain this event. So the pool
  // must not learn from it.
  if (answer) maker_.PlaceAll(steps_, plan);
  const bool metered = coupled() && accounts_.AllMetered();
  const std::optional<double> before = accounts_.LevelAt(0);
  if (!answer && metered) plan.level_s = before;
  // Once per step all ranks get the level; later in the step only ranks that get requests receive a new one.
  const bool level = answer && coupled() && (steps_.level || !metered) && (plan.level_s || before);
  placed_in_step_ += static_cast<int64_t>(plan.placements.size());
  plan.apply_steps.assign(accounts_.workers().size(), 0);
  for (const Placement& placement : plan.placements) plan.apply_steps[placement.worker] = 1;
  bool any = false;
  for (size_t g = 0; g < plan.apply_steps.size(); ++g) {
    const GroupAccounts::Worker& worker = accounts_.workers()[g];
    const bool due =
        plan.apply_steps[g] > 0 || !worker.drops.empty() || HeldUp(worker) || (level && !Idle(worker));
    plan.apply_steps[g] = due ? steps_.numbers[g] : 0;
    any |= due;
  }
  // Decisions without an effect are not logged, so they must not change a level.
  if (!any) return std::nullopt;
  if (answer && coupled()) accounts_.SetLevel(plan.level_s);
  if (level) level_step_ = steps_.step;
  accounts_.SendDrops(steps_, plan);
  for (size_t g = 0; g < plan.apply_steps.size(); ++g) {
    int64_t& planned = accounts_.worker(static_cast<WorkerIndex>(g)).planned_step;
    planned = std::max(planned, plan.apply_steps[g]);
  }
  ++totals_.plans;
  return plan;
}

void IndependentScheduler::CountReport(int64_t) {
  if (coupled()) {
    const absl::Span<const GroupAccounts::Worker> workers = accounts_.workers();
    const int64_t busy = std::count_if(workers.begin(), workers.end(),
                                       [&](const GroupAccounts::Worker& worker) { return !Idle(worker); });
    if (++reports_ < busy) return;
    reports_ = 0;
    ++reported_step_;
    accounts_.CountStep(std::exchange(placed_in_step_, 0));
    return pool_->CountSteps(num_workers(), num_workers(), std::nullopt);
  }
  if (++reports_ % num_workers() == 0) ++reported_step_;
  // The pool's clock counts steps that decode.
  if (kind() == GroupKind::kIndependent) pool_->CountSteps(1, num_workers(), std::nullopt);
}

int64_t IndependentScheduler::ResetSteps() {
  reports_ = placed_in_step_ = level_step_ = 0;
  return 0;
}

}  // namespace bfio::core
