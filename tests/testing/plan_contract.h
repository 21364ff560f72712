// The contract of policy.h as assertions: what every plan of every policy must fulfil.
//
// Purpose: one statement of the contract for unit and property tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Whether the requests that the plan gives to worker g fit together, by reservation or by the KV outlook.
inline bool KvHolds(const Snapshot& snapshot, const std::vector<Assignment>& plan, WorkerIndex g) {
  int64_t reserved = 0;
  const KvOutlook& kv = snapshot.kv;
  std::vector<int64_t> needs(kv.row(), 0);
  bool any = false;
  for (const Assignment& assignment : plan) {
    if (assignment.worker != g) continue;
    any = true;
    const WaitingView& request = snapshot.waiting[assignment.waiting_index];
    reserved += request.kv_reserve_tokens;
    for (size_t i = 0; i < needs.size(); ++i)
      needs[i] += kv.need[static_cast<size_t>(request.kv_need) * kv.row() + i];
  }
  if (!any || reserved <= snapshot.workers[g].free_kv_tokens) return true;
  for (int32_t time = 0; time < kv.times; ++time) {
    bool holds = false;
    for (int32_t way = 0; way < kv.ways; ++way) {
      const size_t i = static_cast<size_t>(time * kv.ways + way);
      holds = holds || needs[i] <= kv.capacity[static_cast<size_t>(g) * kv.row() + i];
    }
    if (!holds) return false;
  }
  return !kv.empty();
}

// The capacity left after the plan. Fails the test when the plan exceeds a limit or names a request twice.
inline FreeCapacity LeftAfter(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  FreeCapacity left;
  left.Reset(snapshot);
  std::vector<char> seen(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) {
    EXPECT_EQ(seen.at(assignment.waiting_index)++, 0) << "request assigned twice";
    const WaitingView& request = snapshot.waiting[assignment.waiting_index];
    EXPECT_LT(request.kv_reserve_tokens, left[assignment.worker].max_sequence_tokens) << "too long";
    left.Take(request, assignment.worker);
  }
  for (WorkerIndex g = 0; g < left.workers(); ++g) {
    EXPECT_GE(left[g].free_slots, 0) << "slots exceeded";
    EXPECT_TRUE(KvHolds(snapshot, plan, g)) << "KV of worker " << g << " exceeded";
  }
  return left;
}

inline void CheckContract(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  const FreeCapacity left = LeftAfter(snapshot, plan);
  std::vector<char> placed(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) placed[assignment.waiting_index] = 1;
  int64_t slots = 0, most_kv = 0;
  for (const WorkerView& worker : snapshot.workers) slots += worker.free_slots;
  for (const WaitingView& request : snapshot.waiting) most_kv += request.kv_reserve_tokens;
  const bool kv_binds =
      std::any_of(snapshot.workers.begin(), snapshot.workers.end(), [&](const WorkerView& worker) {
        return !worker.CouldHold(most_kv) || worker.free_kv_tokens < most_kv;
      });
  if (!kv_binds) {
    EXPECT_EQ(static_cast<int64_t>(plan.size()), std::min<int64_t>(slots, snapshot.waiting.size()));
    int32_t lowest_in = 1 << 20, highest_out = -1;
    for (size_t i = 0; i < placed.size(); ++i) {
      const int32_t priority = snapshot.waiting[i].priority;
      if (placed[i]) lowest_in = std::min(lowest_in, priority);
      if (!placed[i]) highest_out = std::max(highest_out, priority);
    }
    EXPECT_GE(lowest_in, highest_out) << "a lower class went first";
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    EXPECT_TRUE(placed[i] || !left.FitsSomewhere(snapshot.waiting[i]))
        << "request " << i << " could still start";
  }
}

}  // namespace bfio::core
