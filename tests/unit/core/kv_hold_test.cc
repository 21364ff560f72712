// KV must not starve anybody, whatever the policy (router/core/policy/room.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "router/core/policy/room.h"
#include "router/core/scheduler/virtual_fcfs.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

class KvHoldTest : public ::testing::TestWithParam<PolicyInfo> {
 protected:
  std::string name() const { return std::string(GetParam().name); }
};
INSTANTIATE_TEST_SUITE_P(Policies, KvHoldTest, ::testing::ValuesIn(RegisteredPolicies()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(KvHoldTest, SmallRequestPassesOneThatFitsNowhereYet) {
  EXPECT_THAT(PolicyCase().Worker(0, 4, 50).Waiting(90, kHoldAfterSteps - 1).Waiting(20).Decide(name()),
              ElementsAre(-1, 0));
}

TEST_P(KvHoldTest, OverdueRequestHoldsTheWorkerWithMostRoom) {
  const PolicyCase overdue = PolicyCase().Worker(0, 4, 50).Worker(0, 4, 60).Waiting(90, kHoldAfterSteps);
  EXPECT_THAT(PolicyCase(overdue).Waiting(20).Waiting(20).Decide(name()), ElementsAre(-1, 0, 0));
}

TEST_P(KvHoldTest, FullWorkerIsNotTheOneHeld) {
  const PolicyCase overdue = PolicyCase().Worker(0, 0, 80).Worker(0, 1, 60).Waiting(90, kHoldAfterSteps);
  EXPECT_THAT(PolicyCase(overdue).Waiting(20).Decide(name()), ElementsAre(-1, -1));
}

TEST(KvHold, WorkerThatCouldNeverHoldTheRequestIsNotHeld) {
  // Worker 0 has most free KV, but 80 tokens in all.
  std::vector<WorkerView> workers(2);
  workers[0] = {.active = 1, .free_slots = 4, .free_kv_tokens = 70, .total_kv_tokens = 80};
  workers[1] = {.active = 3, .free_slots = 4, .free_kv_tokens = 60, .total_kv_tokens = 100};
  std::vector<WaitingView> waiting(2);
  waiting[0] = {.id = 1, .prefill_tokens = 90, .kv_reserve_tokens = 90};
  waiting[1] = {.id = 2, .prefill_tokens = 95, .kv_reserve_tokens = 95};
  Snapshot snapshot;
  snapshot.step = kHoldAfterSteps;
  snapshot.workers = workers;
  snapshot.waiting = waiting;
  Room room;
  room.Reset(snapshot);
  EXPECT_EQ(room[0].free_slots, 4);
  EXPECT_EQ(room[1].free_slots, 0);
  // Nor is anybody while no worker with a free slot could hold it; the next overdue request may hold one.
  workers[1].free_slots = 0;
  waiting[1].kv_reserve_tokens = 75;
  room.Reset(snapshot);
  EXPECT_EQ(room[0].free_slots, 0);
  waiting[1].kv_reserve_tokens = 65;
  room.Reset(snapshot);
  EXPECT_EQ(room[0].free_slots, 4);
}

TEST_P(KvHoldTest, NobodyIsHeldForARequestThatFits) {
  EXPECT_THAT(PolicyCase()
                  .Worker(0, 1, 95)
                  .Worker(0, 1, 60)
                  .Waiting(90, 10 * kHoldAfterSteps)
                  .Waiting(20)
                  .Decide(name()),
              ElementsAre(0, 1));
}

// Small requests that arrive faster than they leave would fill every gap for ever.
TEST_P(KvHoldTest, LargeRequestGetsInAgainstAnEndlessStreamOfSmallOnes) {
  constexpr int kWorkers = 2, kLife = 5;
  constexpr int64_t kKv = 100, kSmall = 20, kLarge = 90;
  const auto policy = *MakePolicy(name(), {});
  VirtualFcfs first_come;
  std::vector<std::deque<int64_t>> leaving(kWorkers);  // last steps of each worker's requests
  std::vector<WaitingView> waiting(1);
  waiting[0] = {.id = 1, .prefill_tokens = kLarge, .kv_reserve_tokens = kLarge, .enqueued_step = 1};
  for (auto& worker : leaving) worker.push_back(kLife);  // so that it does not fit at once
  for (int64_t step = 1; step < kHoldAfterSteps + 3 * kLife; ++step) {
    while (waiting.size() < 12) {
      waiting.push_back(
          {.id = 2, .prefill_tokens = kSmall, .kv_reserve_tokens = kSmall, .enqueued_step = step});
    }
    std::vector<WorkerView> workers;
    for (auto& worker : leaving) {
      while (!worker.empty() && worker.front() < step) worker.pop_front();
      const int64_t used = kSmall * static_cast<int64_t>(worker.size());
      workers.push_back({used, static_cast<int32_t>(worker.size()), 8, kKv - used});
    }
    Snapshot snapshot{step, workers, waiting};
    snapshot.first_come_p99 = first_come.p99();
    Decision decision;
    policy->Decide(snapshot, decision);
    first_come.Decide(step, static_cast<int64_t>(waiting.size()),
                      static_cast<int64_t>(decision.assignments.size()), /*oldest_step=*/1);
    std::vector<char> gone(waiting.size(), 0);
    for (const Assignment& assignment : decision.assignments) {
      if (assignment.waiting_index == 0) return;  // it is in
      leaving[assignment.worker].push_back(step + kLife - 1);
      gone[assignment.waiting_index] = 1;
    }
    std::vector<WaitingView> left;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (!gone[i]) left.push_back(waiting[i]);
    }
    waiting = left;
  }
  FAIL() << "starved for " << kHoldAfterSteps + 3 * kLife << " steps";
}

}  // namespace
}  // namespace bfio::core
