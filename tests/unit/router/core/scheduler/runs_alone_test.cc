// A request that is suspected of killing workers runs alone on a worker (RequestSpec::steps_alone).
#include <gtest/gtest.h>

#include <string>

#include "router/core/policy/policy.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core::runs_alone_test {

using ::bfio::testing::Request;
using ::bfio::testing::StepGroup;

constexpr int32_t kSteps = 4;

class RunsAloneTest : public ::testing::TestWithParam<GroupKind>, public StepGroup {
 protected:
  RunsAloneTest()
      : StepGroup(std::vector(2, WorkerSpec{.slots = 2, .kv_tokens = 1'000}), *MakePolicy("fcfs", {}), {},
                  nullptr, GetParam()) {}

  void Alone(RequestId id) {
    RequestSpec spec = Request(id);
    spec.steps_alone = kSteps;
    Enqueue(spec);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, RunsAloneTest,
                         ::testing::Values(GroupKind::kBarrier, GroupKind::kIndependent),
                         [](const auto& param) {
                           return std::string(param.param == GroupKind::kBarrier ? "Barrier" : "Independent");
                         });

TEST_P(RunsAloneTest, TakesAnEmptyWorkerForItself) {
  Wait(1, 1);
  EXPECT_EQ(Plan(), "1@0");
  Step();
  Alone(2);
  Wait(3, 5);
  EXPECT_EQ(Plan(), "2@1 3@0");
  EXPECT_EQ(totals().policy_violations, 0);
}

TEST_P(RunsAloneTest, WorkerTakesOthersAgainWhenItHasEnded) {
  Alone(1);
  EXPECT_EQ(Plan(), "1@0");
  Wait(2, 5);
  EXPECT_EQ(Plan(), barrier() ? "" : "2@1 3@1");
  Step();
  End(1);
  Step();
  EXPECT_EQ(group.WorkerOf(2), 1);
  EXPECT_EQ(group.WorkerOf(3), 1);
  Plan();
  EXPECT_EQ(group.WorkerOf(4), 0);
  EXPECT_EQ(group.WorkerOf(5), 0);
}

TEST_P(RunsAloneTest, WorkerTakesOthersAgainWhenItHasLivedLongEnough) {
  Alone(1);
  Wait(2, 4);
  EXPECT_EQ(Plan(), "1@0 2@1 3@1");
  for (int32_t step = 1; step < kSteps; ++step) {
    Step();
    EXPECT_EQ(Plan(), "");
    EXPECT_EQ(group.WorkerOf(4), std::nullopt);
  }
  Step();
  Plan();
  EXPECT_EQ(group.WorkerOf(4), 0);
}

// Two stages could place it, each on another worker.
TEST(RunsAlone, OneForWhichMemoryIsHeldIsPlacedOnce) {
  StepGroup group(std::vector(2, WorkerSpec{.slots = 2, .kv_tokens = 100}), *MakePolicy("fcfs", {}),
                  {.hold_after_steps = 1});
  RequestSpec spec = Request(3, 50, 50);
  spec.steps_alone = kSteps;
  for (RequestId id : {1, 2}) group.Enqueue(Request(id, 50, 50));
  group.Step();
  group.Enqueue(spec);
  group.Step(2);
  group.End(1), group.End(2);
  group.Step();
  EXPECT_EQ(group.Plan(), "3@0");
}

}  // namespace bfio::core::runs_alone_test
