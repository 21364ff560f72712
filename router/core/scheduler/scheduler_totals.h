// What a group's scheduler has counted since it was made. Plain data.
#pragma once

#include <cstdint>

namespace bfio::core {

struct SchedulerTotals {
  int64_t plans = 0;
  // Calls of the policy; not every call gives a plan (MakePlan).
  int64_t policy_calls = 0;
  // Acknowledgements that arrived after the plan's step.
  int64_t late_plans = 0;
  int64_t drift_tokens = 0;
  // Finished or rejected ids that were not on the reporting worker.
  int64_t unknown_ids = 0;
  // Assignments that broke a policy's contract and were discarded; 0 unless a policy has a bug.
  int64_t policy_violations = 0;
  // Requests that workers removed because they lacked KV.
  int64_t preempted = 0;
  // Requests that waited for a batch.
  int64_t held_back = 0;

  SchedulerTotals& operator+=(const SchedulerTotals& other) {
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
};

}  // namespace bfio::core
