#include "router/core/scheduler/scheduler_state.h"

namespace bfio::core {

SchedulerTotals& SchedulerTotals::operator+=(const SchedulerTotals& other) {
  plans += other.plans;
  policy_calls += other.policy_calls;
  late_plans += other.late_plans;
  drift_tokens += other.drift_tokens;
  unknown_ids += other.unknown_ids;
  policy_violations += other.policy_violations;
  preempted += other.preempted;
  held_back += other.held_back;
  return *this;
}

}  // namespace bfio::core
