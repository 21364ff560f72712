// A request must not starve for lack of KV memory under any policy (router/core/scheduler/kv_hold.h).
#include "router/core/scheduler/kv_hold.h"

#include <gmock/gmock.h>

#include <deque>
#include <string>
#include <vector>

#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using ::bfio::testing::OneGroup;
using ::testing::ElementsAre;

constexpr int64_t kStep = 1'000;

struct Pool {
  Pool& Worker(int32_t free_slots, int64_t free_kv, int64_t total_kv) {
    workers.push_back({.free_slots = free_slots, .free_kv_tokens = free_kv, .total_kv_tokens = total_kv});
    return *this;
  }
  Pool& Waiting(int64_t kv, int64_t age) {
    waiting.push_back({.id = waiting.size() + 1,
                       .prefill_tokens = kv,
                       .kv_reserve_tokens = kv,
                       .enqueued_step = kStep - age});
    return *this;
  }
  // Free slots by worker after the rule has been applied.
  std::vector<int32_t> Close(KvHold& hold) const {
    FreeCapacity free;
    free.Reset(workers, {});
    hold.Close(kStep, waiting, free);
    std::vector<int32_t> slots;
    for (const WorkerView& view : free.views()) slots.push_back(view.free_slots);
    return slots;
  }
  std::optional<Assignment> Serve(KvHold& hold) const {
    FreeCapacity free;
    free.Reset(workers, {});
    return hold.Serve(waiting, free);
  }

  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting;
};

TEST(KvHoldTest, OverdueRequestHoldsTheWorkerWithMostFreeKv) {
  KvHold hold(64);
  EXPECT_THAT(Pool().Worker(4, 50, 100).Worker(4, 60, 100).Waiting(90, 64).Waiting(20, 0).Close(hold),
              ElementsAre(4, 0));
  EXPECT_EQ(hold.holder(), 1);
}

TEST(KvHoldTest, NoWorkerIsHeldBeforeTheTime) {
  KvHold hold(64);
  EXPECT_THAT(Pool().Worker(4, 50, 100).Waiting(90, 63).Close(hold), ElementsAre(4));
  EXPECT_EQ(hold.holder(), std::nullopt);
}

TEST(KvHoldTest, NoWorkerIsHeldForARequestThatFits) {
  KvHold hold(64);
  EXPECT_THAT(Pool().Worker(1, 95, 100).Worker(1, 60, 100).Waiting(90, 640).Close(hold), ElementsAre(1, 1));
}

TEST(KvHoldTest, FullWorkerIsNotTheOneHeld) {
  KvHold hold(64);
  EXPECT_THAT(Pool().Worker(0, 80, 100).Worker(1, 60, 100).Waiting(90, 64).Close(hold), ElementsAre(0, 0));
}

TEST(KvHoldTest, WorkerThatCouldNeverTakeTheRequestIsNotHeld) {
  KvHold hold(64);
  EXPECT_THAT(Pool().Worker(4, 70, 80).Worker(4, 60, 100).Waiting(90, 64).Close(hold), ElementsAre(4, 0));
}

TEST(KvHoldTest, NextOverdueRequestHoldsWhereNoWorkerCouldTakeTheFirst) {
  KvHold hold(64);
  EXPECT_THAT(
      Pool().Worker(4, 70, 80).Worker(0, 60, 100).Waiting(90, 64).Waiting(75, 64).Waiting(75, 64).Close(hold),
      ElementsAre(0, 0));
  EXPECT_EQ(hold.holder(), 2);
}

TEST(KvHoldTest, HolderKeepsItsWorkerUntilItFits) {
  KvHold hold(64);
  Pool pool;
  pool.Worker(4, 50, 100).Waiting(90, 64).Waiting(95, 70);
  pool.Close(hold);
  EXPECT_EQ(hold.holder(), 1);
  EXPECT_EQ(pool.Serve(hold), std::nullopt);
  pool.workers[0].free_kv_tokens = 96;
  const std::optional<Assignment> served = pool.Serve(hold);
  ASSERT_TRUE(served);
  EXPECT_EQ(served->waiting_index, 0);
  EXPECT_EQ(served->worker, 0);
  EXPECT_EQ(hold.holder(), std::nullopt);
}

TEST(KvHoldTest, HolderThatIsGoneHoldsNoLonger) {
  KvHold hold(64);
  hold.SetHolder(7);
  EXPECT_EQ(Pool().Worker(1, 10, 100).Waiting(5, 0).Serve(hold), std::nullopt);
  EXPECT_EQ(hold.holder(), std::nullopt);
}

class KvHoldOfPolicyTest : public ::testing::TestWithParam<PolicyInfo> {};
INSTANTIATE_TEST_SUITE_P(Policies, KvHoldOfPolicyTest, ::testing::ValuesIn(RegisteredPolicies()),
                         [](const auto& param) { return std::string(param.param.name); });

// Small requests that arrive faster than they leave would always fill every gap.
TEST_P(KvHoldOfPolicyTest, LargeRequestGetsInAgainstAnEndlessStreamOfSmallOnes) {
  constexpr int kWorkers = 2, kLife = 5;
  constexpr int64_t kKv = 100, kSmall = 16, kLarge = 86;
  OneGroup group({}, *MakePolicy(std::string(GetParam().name), {}));
  const WorkerSpec worker{.slots = 8, .kv_tokens = kKv};
  group.OpenEpoch({{worker, {}, {}}, {worker, {}, {}}});
  RequestId next = 1;
  ASSERT_TRUE(group.Enqueue({.id = next++, .prefill_tokens = kSmall, .max_new_tokens = kLife}).ok());
  ASSERT_TRUE(group.Enqueue({.id = next++, .prefill_tokens = kSmall, .max_new_tokens = kLife}).ok());
  constexpr RequestId kLargeId = 1'000'000;
  struct Running {
    RequestId id;
    int64_t since;
  };
  std::vector<std::deque<Running>> running(kWorkers);
  for (int64_t step = 1; step < kHoldAfterSteps + 4 * kLife; ++step) {
    if (step == 2) {
      ASSERT_TRUE(group.Enqueue({.id = kLargeId, .prefill_tokens = kLarge, .max_new_tokens = kLife}).ok());
    }
    while (group.waiting() < 12) {
      ASSERT_TRUE(group.Enqueue({.id = next++, .prefill_tokens = kSmall, .max_new_tokens = kLife}).ok());
    }
    const std::optional<Plan> plan = group.MakePlan();
    ASSERT_TRUE(plan);
    for (const Placement& placement : plan->placements) {
      if (placement.id == kLargeId) return;
      running[static_cast<size_t>(placement.worker)].push_back({placement.id, step});
    }
    for (int g = 0; g < kWorkers; ++g) {
      StepReport report = {.step = step, .applied_plan = plan->apply_step};
      for (const Running& request : running[g]) {
        report.load_tokens += kSmall + step - request.since;
      }
      std::vector<RequestId> finished;
      while (!running[g].empty() && running[g].front().since + kLife - 1 == step) {
        finished.push_back(running[g].front().id);
        running[g].pop_front();
      }
      report.finished = finished;
      ASSERT_TRUE(group.OnReport(g, report).ok());
    }
  }
  FAIL() << "starved for " << kHoldAfterSteps + 4 * kLife << " steps";
}

}  // namespace
}  // namespace bfio::core
