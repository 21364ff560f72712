// The contract of policy.h as assertions: what every plan of every policy keeps.
//
// Purpose: one statement of the contract for unit and property tests.
#ifndef BFIO_TESTS_TESTING_PLAN_CONTRACT_H_
#define BFIO_TESTS_TESTING_PLAN_CONTRACT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "router/core/model/snapshot.h"
#include "router/core/policy/room.h"

namespace bfio::core {

inline bool FitsSomewhere(const std::vector<WorkerView>& workers, const WaitingView& request) {
  return std::any_of(workers.begin(), workers.end(), [&](const WorkerView& worker) {
    return worker.free_slots > 0 && request.kv_reserve_tokens <= worker.free_kv_tokens;
  });
}

// What is left of the workers; fails when the plan breaks a cap or names a request twice.
inline std::vector<WorkerView> LeftAfter(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  std::vector<WorkerView> left(snapshot.workers.begin(), snapshot.workers.end());
  std::vector<char> seen(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) {
    EXPECT_EQ(seen.at(assignment.waiting_index)++, 0) << "request assigned twice";
    WorkerView& worker = left.at(assignment.worker);
    EXPECT_GE(--worker.free_slots, 0) << "slots exceeded";
    worker.free_kv_tokens -= snapshot.waiting[assignment.waiting_index].kv_reserve_tokens;
    EXPECT_GE(worker.free_kv_tokens, 0) << "KV exceeded";
  }
  return left;
}

// Closes the worker an overdue request holds, by the words of room.h.
inline void CloseHeld(const Snapshot& snapshot, std::vector<WorkerView>& left) {
  const std::vector<WorkerView> before(snapshot.workers.begin(), snapshot.workers.end());
  const auto could_hold = [](const WorkerView& worker, const WaitingView& request) {
    return worker.free_slots > 0 && worker.total_kv_tokens >= request.kv_reserve_tokens;
  };
  const WaitingView* holder = nullptr;
  for (const WaitingView& request : snapshot.waiting) {
    if (snapshot.step - request.enqueued_step < kHoldAfterSteps || FitsSomewhere(before, request)) continue;
    const bool ever = std::any_of(before.begin(), before.end(),
                                  [&](const WorkerView& worker) { return could_hold(worker, request); });
    if (ever && holder == nullptr) holder = &request;
  }
  if (holder == nullptr) return;
  int held = -1;
  for (size_t g = 0; g < before.size(); ++g) {
    if (!could_hold(before[g], *holder)) continue;
    if (held < 0 || before[g].free_kv_tokens > before[held].free_kv_tokens) held = static_cast<int>(g);
  }
  left[held].free_slots = 0;
}

inline void CheckContract(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  std::vector<WorkerView> left = LeftAfter(snapshot, plan);
  CloseHeld(snapshot, left);
  std::vector<char> placed(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) placed[assignment.waiting_index] = 1;
  int64_t slots = 0, most_kv = 0;
  for (const WorkerView& worker : snapshot.workers) slots += worker.free_slots;
  for (const WaitingView& request : snapshot.waiting) most_kv += request.kv_reserve_tokens;
  const bool kv_binds =
      std::any_of(snapshot.workers.begin(), snapshot.workers.end(),
                  [&](const WorkerView& worker) { return worker.free_kv_tokens < most_kv; });
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
    EXPECT_TRUE(placed[i] || !FitsSomewhere(left, snapshot.waiting[i]))
        << "request " << i << " could still start";
  }
}

}  // namespace bfio::core

#endif  // BFIO_TESTS_TESTING_PLAN_CONTRACT_H_
