// A request that is suspected of killing workers runs alone on a worker (RequestSpec::steps_alone).
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using ::bfio::testing::OneGroup;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int32_t kSteps = 4;
constexpr WorkerSpec kWorker{.slots = 2, .kv_tokens = 1'000};

class RunsAloneTest : public ::testing::TestWithParam<GroupKind> {
 protected:
  explicit RunsAloneTest(int workers = 2) : group_({}, *MakePolicy("fcfs", {}), nullptr, GetParam()) {
    group_.OpenEpoch(std::vector<EpochMember>(static_cast<size_t>(workers), {kWorker, {}, {}}));
  }

  void Enqueue(RequestId id, bool alone = false) {
    ASSERT_TRUE(
        group_
            .Enqueue(
                {.id = id, .prefill_tokens = 10, .max_new_tokens = 50, .steps_alone = alone ? kSteps : 0})
            .ok());
  }
  // Placements of all plans that can be made now, as (request, worker).
  std::vector<std::pair<RequestId, WorkerIndex>> Place() {
    std::vector<std::pair<RequestId, WorkerIndex>> placed;
    while (const auto plan = group_.MakePlan()) {
      for (const Placement& placement : plan->placements) placed.emplace_back(placement.id, placement.worker);
      for (size_t g = 0; g < applied_.size(); ++g) {
        const int64_t number = plan->apply_steps.empty() ? plan->apply_step : plan->apply_steps[g];
        if (number > 0) applied_[g] = number;
      }
    }
    return placed;
  }
  // Every worker runs a step in which these requests finish.
  void Step(const std::vector<std::vector<RequestId>>& finished) {
    ++step_;
    for (WorkerIndex g = 0; g < 2; ++g) {
      StepReport report = {.step = step_, .applied_plan = applied_[static_cast<size_t>(g)]};
      const auto account = group_.Account(g);
      report.load_tokens = account.load_tokens + 10 * account.inflight;
      report.finished = finished[static_cast<size_t>(g)];
      ASSERT_TRUE(group_.OnReport(g, report).ok());
    }
  }

  OneGroup group_;
  int64_t step_ = 0;
  std::vector<int64_t> applied_ = {0, 0};
};
INSTANTIATE_TEST_SUITE_P(Kinds, RunsAloneTest,
                         ::testing::Values(GroupKind::kBarrier, GroupKind::kIndependent),
                         [](const auto& param) {
                           return param.param == GroupKind::kBarrier ? std::string("Barrier")
                                                                     : std::string("Independent");
                         });

TEST_P(RunsAloneTest, TakesAnEmptyWorkerForItself) {
  Enqueue(1);
  EXPECT_THAT(Place(), ElementsAre(Pair(1, 0)));
  Step({{}, {}});
  Enqueue(2, /*alone=*/true);
  for (RequestId id = 3; id < 6; ++id) Enqueue(id);
  EXPECT_THAT(Place(), ElementsAre(Pair(2, 1), Pair(3, 0)));
  EXPECT_EQ(group_.totals().policy_violations, 0);
}

TEST_P(RunsAloneTest, WorkerTakesOthersAgainWhenItHasEnded) {
  Enqueue(1, /*alone=*/true);
  EXPECT_THAT(Place(), ElementsAre(Pair(1, 0)));
  for (RequestId id = 2; id < 6; ++id) Enqueue(id);
  Step({{}, {}});
  EXPECT_THAT(Place(), ElementsAre(Pair(2, 1), Pair(3, 1)));
  Step({{1}, {}});
  EXPECT_THAT(Place(), ElementsAre(Pair(4, 0), Pair(5, 0)));
}

TEST_P(RunsAloneTest, WorkerTakesOthersAgainWhenItHasLivedLongEnough) {
  Enqueue(1, /*alone=*/true);
  EXPECT_THAT(Place(), ElementsAre(Pair(1, 0)));
  for (RequestId id = 2; id < 5; ++id) Enqueue(id);
  for (int32_t step = 1; step < kSteps; ++step) {
    Step({{}, {}});
    EXPECT_EQ(group_.WorkerOf(4), std::nullopt);
    Place();
  }
  Step({{}, {}});
  EXPECT_THAT(Place(), ElementsAre(Pair(4, 0)));
}

TEST_P(RunsAloneTest, WithoutAnEmptyWorkerTheOneWithFewestRequests) {
  for (RequestId id = 1; id < 4; ++id) Enqueue(id);
  EXPECT_THAT(Place(), ElementsAre(Pair(1, 0), Pair(2, 1), Pair(3, 0)));
  Step({{}, {}});
  Enqueue(4, /*alone=*/true);
  EXPECT_THAT(Place(), ElementsAre(Pair(4, 1)));
}

TEST_P(RunsAloneTest, WaitsWhereNoSlotIsFree) {
  for (RequestId id = 1; id < 5; ++id) Enqueue(id);
  Place();
  Step({{}, {}});
  Enqueue(5, /*alone=*/true);
  EXPECT_THAT(Place(), IsEmpty());
  Step({{}, {2}});
  EXPECT_THAT(Place(), ElementsAre(Pair(5, 1)));
}

TEST_P(RunsAloneTest, TwoSuspectsAreKeptApart) {
  Enqueue(1, /*alone=*/true);
  Enqueue(2, /*alone=*/true);
  Enqueue(3, /*alone=*/true);
  EXPECT_THAT(Place(), ElementsAre(Pair(1, 0), Pair(2, 1)));
}

}  // namespace
}  // namespace bfio::core
