// Requests that are held to a rank (RequestSpec::held_to): where and when they are placed, and that those
// that cannot be placed do not affect other requests.
#include "router/core/scheduler/request_pool.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using ::bfio::testing::OneGroup;
using ::bfio::testing::StepGroup;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Pair;

RequestSpec HeldSpec(RequestId id, WorkerIndex worker, int64_t prompt = 10, int64_t output = 4) {
  RequestSpec spec{.id = id, .prefill_tokens = prompt, .max_new_tokens = output};
  spec.held_to = {OneGroup::kGroup, worker};
  return spec;
}
RequestSpec FreeSpec(RequestId id, int64_t prompt = 10, int64_t output = 4) {
  return {.id = id, .prefill_tokens = prompt, .max_new_tokens = output};
}

// A group whose placements are kept, in order: id and worker.
class RankSteps : public StepGroup {
 public:
  RankSteps(const std::string& policy, const std::vector<WorkerSpec>& specs, SchedulerOptions options = {})
      : StepGroup(specs, *MakePolicy(policy, {}), options) {}

  std::vector<std::pair<RequestId, WorkerIndex>> placed;

 protected:
  void OnPlan(const core::Plan& plan) override {
    for (const Placement& placement : plan.placements) {
      const auto& held_to = requests.at(placement.id).spec.held_to;
      EXPECT_EQ(held_to ? held_to->worker : placement.worker, placement.worker) << placement.id;
      placed.emplace_back(placement.id, placement.worker);
    }
  }
};

class RankQueuesOfPolicyTest : public ::testing::TestWithParam<PolicyInfo> {
 protected:
  std::string policy() const { return std::string(GetParam().name); }
};
INSTANTIATE_TEST_SUITE_P(Policies, RankQueuesOfPolicyTest, ::testing::ValuesIn(RegisteredPolicies()),
                         [](const auto& param) { return std::string(param.param.name); });

// A draining rank takes no requests, so those held to it wait. All others must be placed as if these did not
// exist.
TEST_P(RankQueuesOfPolicyTest, RequestsThatCannotBePlacedChangeNothingForOthers) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    const WorkerSpec worker{.slots = 3, .kv_tokens = 100};
    RankSteps alone(policy(), {worker, worker, worker}), beside(policy(), {worker, worker, worker});
    for (RankSteps* steps : {&alone, &beside}) steps->group.SetAcceptsNew(0, false);
    Rng rng(seed);
    RequestId id = 0;
    for (int step = 0; step < 150; ++step) {
      for (uint64_t n = rng.Below(4); n > 0; --n) {
        const RequestSpec spec = FreeSpec(++id, 1 + static_cast<int64_t>(rng.Below(60)));
        alone.Enqueue(spec);
        beside.Enqueue(spec);
      }
      if (rng.Below(2) == 0) beside.Enqueue(HeldSpec(++id, 0));
      alone.Step();
      beside.Step();
    }
    EXPECT_GT(alone.placed.size(), 100u);
    EXPECT_EQ(alone.placed, beside.placed);
  }
}

// Small requests that arrive faster than they leave would always fill every gap of the rank.
TEST_P(RankQueuesOfPolicyTest, ALargeHeldRequestGetsIntoItsRank) {
  RankSteps steps(policy(), {{.slots = 8, .kv_tokens = 100}, {.slots = 8, .kv_tokens = 100}});
  RequestId id = 0;
  constexpr RequestId kLarge = 1'000'000;
  for (int64_t step = 0; step < kHoldAfterSteps + 40; ++step) {
    while (steps.group.waiting() < 12) steps.Enqueue(FreeSpec(++id, 16, 5));
    if (step == 2) steps.Enqueue(HeldSpec(kLarge, 1, 86, 5));
    steps.Step();
  }
  EXPECT_THAT(steps.placed, Contains(Pair(kLarge, 1))) << "it never got in";
}

TEST(RankQueuesTest, TheMoreUrgentRequestOfARankGoesFirst) {
  RankSteps steps("fcfs", {{.slots = 1, .kv_tokens = 100}, {.slots = 1, .kv_tokens = 100}});
  steps.Enqueue(HeldSpec(1, 1));
  steps.Enqueue(HeldSpec(2, 1));
  RequestSpec urgent = HeldSpec(3, 1);
  urgent.priority = 1;
  steps.Enqueue(urgent);
  steps.Step(20);
  EXPECT_THAT(steps.placed, ElementsAre(Pair(3, 1), Pair(1, 1), Pair(2, 1)));
}

TEST(RankQueuesTest, WithoutItsRankARequestWaitsAndHalfOfThePoolIsFreeOfSuch) {
  RankSteps steps("fcfs", {{.slots = 1, .kv_tokens = 100}}, {.max_waiting = 4});
  steps.Enqueue(HeldSpec(1, 5));
  steps.Enqueue(HeldSpec(2, 5));
  EXPECT_EQ(steps.Plan(), "");
  EXPECT_EQ(steps.group.waiting(), 2);
  EXPECT_TRUE(absl::IsResourceExhausted(steps.group.Enqueue(HeldSpec(3, 5))));
  steps.Enqueue(FreeSpec(4));
  steps.Enqueue(FreeSpec(5));
  EXPECT_EQ(steps.group.Cancel(1), CancelOutcome::kDequeued);
  EXPECT_EQ(steps.group.waiting(), 3);
}

}  // namespace
}  // namespace bfio::core
