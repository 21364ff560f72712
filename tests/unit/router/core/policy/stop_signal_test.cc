// A deadline ends the search of bf_io and bf_io_auto with the plan at hand; without one, and as long as it
// has not come, nothing is different.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/rng.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

constexpr int kWorkers = 32;
constexpr int kSlots = 2;

// More waiting than free slots, too many for the exact answer. The outlook reaches one step.
PolicyCase Crowd(uint64_t seed) {
  Rng rng(seed);
  PolicyCase crowd;
  std::vector<double> ahead;
  for (int g = 0; g < kWorkers; ++g) {
    const auto load = static_cast<int64_t>(50'000 + rng.Below(5'000));
    crowd.Worker(load, kSlots, kAmpleKv, 40);
    ahead.insert(ahead.end(), {static_cast<double>(load), static_cast<double>(load - rng.Below(2'000))});
  }
  for (int i = 0; i < 300; ++i) crowd.Waiting(1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200), 300 - i);
  return crowd.Ahead(1, ahead, {1, 0.9});
}

struct Kind {
  const char* policy;
  const char* objective;
  int32_t horizon;
};

class StopSignalTest : public ::testing::TestWithParam<Kind> {
 protected:
  static PolicyOptions Options(StopSignal stop) {
    PolicyOptions options;
    options.objective = GetParam().objective;
    options.horizon = GetParam().horizon;
    options.stop = std::move(stop);
    return options;
  }
  static std::unique_ptr<Policy> Make(StopSignal stop) {
    return *MakePolicy(GetParam().policy, Options(std::move(stop)));
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, StopSignalTest,
                         ::testing::Values(Kind{"bf_io", "square", 0}, Kind{"bf_io", "square", 1},
                                           Kind{"bf_io", "refill", 1}, Kind{"bf_io", "paper", 1},
                                           Kind{"bf_io_auto", "square", 0}),
                         [](const auto& param) {
                           return std::string(param.param.policy) + "_" + param.param.objective +
                                  std::to_string(param.param.horizon);
                         });

TEST_P(StopSignalTest, DecisionThatIsEndedFillsEverySlotAndIsMarked) {
  bool over = true;
  const std::unique_ptr<Policy> policy = Make([&] { return over; });
  const PolicyCase crowd = Crowd(1);
  const Decision decision = crowd.Ask(*policy);
  EXPECT_TRUE(decision.stopped_early);
  const std::vector<int32_t> plan = crowd.WorkersOf(decision);
  for (int32_t g = 0; g < kWorkers; ++g) EXPECT_EQ(std::count(plan.begin(), plan.end(), g), kSlots);

  over = false;
  EXPECT_FALSE(Crowd(2).Ask(*policy).stopped_early);
}

TEST_P(StopSignalTest, DeadlineThatDoesNotComeChangesNothing) {
  int64_t asked = 0;
  const std::unique_ptr<Policy> without = Make({}), with = Make([&] { return ++asked < 0; });
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const PolicyCase crowd = Crowd(seed);
    const Decision decision = crowd.Ask(*with);
    EXPECT_EQ(crowd.WorkersOf(decision), crowd.Decide(*without)) << seed;
    EXPECT_FALSE(decision.stopped_early);
  }
  EXPECT_GT(asked, 0);
}

TEST_P(StopSignalTest, EmptyDecisionWasNotEndedEvenIfTheLastOneWas) {
  const std::unique_ptr<Policy> policy = Make([] { return true; });
  ASSERT_TRUE(Crowd(1).Ask(*policy).stopped_early);
  EXPECT_FALSE(PolicyCase().Worker(5, 0).Waiting(7).Ask(*policy).stopped_early);
}

// Three requests and two workers: the exact answer, whatever the clock says.
TEST_P(StopSignalTest, DecisionTooSmallToBeEndedIsNone) {
  const std::unique_ptr<Policy> policy = Make([] { return true; });
  const PolicyCase few = PolicyCase().Worker(10'000, 0).Worker(4'000, 1).WaitingAll({300, 6'000, 2'000});
  EXPECT_FALSE(few.Ask(*policy).stopped_early);
}

}  // namespace
}  // namespace bfio::core
