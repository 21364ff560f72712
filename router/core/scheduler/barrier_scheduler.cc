#include "router/core/scheduler/barrier_scheduler.h"

#include <algorithm>
#include <utility>

namespace bfio::core {

bool BarrierScheduler::GroupIdle() const {
  const absl::Span<const GroupAccounts::Worker> workers = accounts_.workers();
  return open_ && std::all_of(workers.begin(), workers.end(), [&](const GroupAccounts::Worker& w) {
           return w.idle && w.last_step == reported_step_;
         });
}

int64_t BarrierScheduler::TargetStep(bool force) const {
  const bool ahead = options_.plan_mode == PlanMode::kPipelined && !GroupIdle();
  return reported_step_ + (ahead ? 2 : 1) + options_.report_delay_steps + (force ? 1 : 0);
}

std::optional<Plan> BarrierScheduler::Decide(bool force, std::optional<DecisionMaker::Answer>& answer) {
  const int64_t target = TargetStep(force);
  if (target <= planned_step_) return std::nullopt;
  const bool idle = GroupIdle(), unused = accounts_.placed() == 0;
  const int64_t clock = ClockAt(target);
  totals_.held_back += pool_->ReleaseBatches(clock, idle && unused);
  // Residents of a new epoch's members count too: such a group waits for its first plan, but is not out of
  // work.
  if (idle && !pool_->AnyPlaceable() && unused && !accounts_.HasDrops()) return std::nullopt;

  steps_.step = target;
  steps_.reported = reported_step_;
  steps_.clock = clock;
  steps_.level = true;
  steps_.targets.assign(accounts_.workers().size(), target);
  steps_.numbers.assign(accounts_.workers().size(), target);
  Plan plan;
  plan.apply_step = target;
  answer = DecideAndRecord(steps_, plan);
  // An idle group must not run empty steps because of waiting requests that fit nowhere.
  if (idle && maker_.empty() && accounts_.placed() == 0 && !accounts_.HasDrops()) return std::nullopt;

  maker_.PlaceAll(steps_, plan);
  accounts_.SendDrops(steps_, plan);
  accounts_.Planned(target, plan.level_s, static_cast<int64_t>(plan.placements.size()));
  planned_step_ = target;
  ++totals_.plans;
  return plan;
}

void BarrierScheduler::CountArrived() {
  const absl::Span<const GroupAccounts::Worker> workers = accounts_.workers();
  arrived_ =
      static_cast<int32_t>(std::count_if(workers.begin(), workers.end(), [&](const GroupAccounts::Worker& w) {
        return w.last_step > reported_step_;
      }));
}

void BarrierScheduler::CountReport(int64_t step) {
  if (step != reported_step_ + 1 || ++arrived_ < num_workers()) return;
  // A rank may be ahead: other ranks' reports of an earlier step can arrive after its report of a later one.
  do {
    ++reported_step_;
    int64_t largest = 0;
    for (const GroupAccounts::Worker& w : accounts_.workers()) largest = std::max(largest, w.reported_load);
    pool_->CountSteps(num_workers(), num_workers(), largest);
    CountArrived();
  } while (arrived_ == num_workers());
}

int64_t BarrierScheduler::ResetSteps() {
  arrived_ = 0;
  return std::exchange(planned_step_, 0);
}

}  // namespace bfio::core
