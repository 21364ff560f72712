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

// What is left of the workers, as far as reservations go and as admission sees it.
struct Left {
  explicit Left(const Snapshot& snapshot) : workers(snapshot.workers.begin(), snapshot.workers.end()) {
    kv.Reset(snapshot.kv);
  }
  std::vector<WorkerView> workers;
  KvRoom kv;
};

inline bool FitsSomewhere(const Left& left, const WaitingView& request) {
  for (size_t g = 0; g < left.workers.size(); ++g) {
    const WorkerView& worker = left.workers[g];
    if (worker.free_slots > 0 && (request.kv_reserve_tokens <= worker.free_kv_tokens ||
                                  left.kv.Fits(request.kv_need, static_cast<int32_t>(g)))) {
      return true;
    }
  }
  return false;
}

// Whether the requests of the plan that worker g gets suffice for one another, by either reckoning.
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
      holds = holds || needs[i] <= kv.room[static_cast<size_t>(g) * kv.row() + i];
    }
    if (!holds) return false;
  }
  return !kv.empty();
}

// Fails when the plan breaks a cap or names a request twice.
inline Left LeftAfter(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  Left left(snapshot);
  std::vector<char> seen(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) {
    EXPECT_EQ(seen.at(assignment.waiting_index)++, 0) << "request assigned twice";
    WorkerView& worker = left.workers.at(assignment.worker);
    EXPECT_GE(--worker.free_slots, 0) << "slots exceeded";
    const WaitingView& request = snapshot.waiting[assignment.waiting_index];
    worker.free_kv_tokens -= request.kv_reserve_tokens;
    left.kv.Put(request.kv_need, assignment.worker, +1);
  }
  for (size_t g = 0; g < left.workers.size(); ++g) {
    EXPECT_TRUE(KvHolds(snapshot, plan, static_cast<WorkerIndex>(g))) << "KV of worker " << g << " exceeded";
  }
  return left;
}

// Closes the worker an overdue request holds, by the words of room.h.
inline void CloseHeld(const Snapshot& snapshot, Left& left) {
  const Left all(snapshot);
  const std::vector<WorkerView>& before = all.workers;
  const auto could_hold = [](const WorkerView& worker, const WaitingView& request) {
    return worker.free_slots > 0 && worker.total_kv_tokens >= request.kv_reserve_tokens;
  };
  const WaitingView* holder = nullptr;
  for (const WaitingView& request : snapshot.waiting) {
    if (snapshot.step - request.enqueued_step < snapshot.hold_after_steps || FitsSomewhere(all, request))
      continue;
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
  left.workers[held].free_slots = 0;
}

inline void CheckContract(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  Left left = LeftAfter(snapshot, plan);
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
