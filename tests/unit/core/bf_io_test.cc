#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

class BfIoTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Objectives, BfIoTest, ::testing::Values("square", "paper"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(BfIoTest, ChoosesTheRequestThatClosesTheGap) {
  const PolicyCase gap =
      PolicyCase().Worker(10'000, 0).Worker(4'000, 1).WaitingAll({300, 9'000, 6'000, 2'000});
  EXPECT_THAT(gap.Decide("bf_io", GetParam()), ElementsAre(-1, -1, 1, -1));
}

TEST_P(BfIoTest, FillsEverySlotEvenWhenThatUnbalances) {
  const PolicyCase balanced = PolicyCase().Worker(5'000, 1).Worker(5'000, 0).WaitingAll({3'000});
  EXPECT_THAT(balanced.Decide("bf_io", GetParam()), ElementsAre(0));
}

TEST_P(BfIoTest, TwoGapsGetTheirOwnRequestsEach) {
  const PolicyCase gaps =
      PolicyCase().Worker(9'000, 0).Worker(8'000, 1).Worker(4'000, 1).WaitingAll({700, 5'000, 1'000, 3'000});
  EXPECT_THAT(gaps.Decide("bf_io", GetParam()), ElementsAre(-1, 2, 1, -1));
}

TEST_P(BfIoTest, LowerPriorityNeverTakesTheSlotOfAHigherOne) {
  const PolicyCase classes = PolicyCase()
                                 .Worker(10'000, 0)
                                 .Worker(4'000, 1)
                                 .Waiting(300, 0, 300, /*priority=*/1)
                                 .Waiting(5'000, 0, 5'000, /*priority=*/1)
                                 .Waiting(6'000, 0, 6'000, /*priority=*/0);
  EXPECT_THAT(classes.Decide("bf_io", GetParam()), ElementsAre(-1, 1, -1));
}

TEST_P(BfIoTest, NoSlotsOrNobodyWaitingIsAnEmptyPlan) {
  EXPECT_THAT(PolicyCase().Worker(1, 0).Waiting(5).Decide("bf_io", GetParam()), ElementsAre(-1));
  EXPECT_TRUE(PolicyCase().Worker(1, 3).Decide("bf_io", GetParam()).empty());
}

TEST(BfIoSquareTest, AgeOutweighsAnyMisfitInTheEnd) {
  // The first request is far too large for the gap that the second closes exactly.
  const auto decide = [](int64_t age) {
    return PolicyCase()
        .Worker(100'000, 0)
        .Worker(99'000, 1)
        .Waiting(30'000, age)
        .Waiting(1'000)
        .Decide("bf_io");
  };
  EXPECT_THAT(decide(0), ElementsAre(-1, 1));
  EXPECT_THAT(decide(1'000'000), ElementsAre(1, -1));
}

TEST(RegistryTest, UnknownPolicyIsAnErrorThatNamesTheKnownOnes) {
  const auto policy = MakePolicy("fastest", {});
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(policy.status().message()), ::testing::HasSubstr("'fastest' is unknown"));
  EXPECT_THAT(std::string(policy.status().message()), ::testing::HasSubstr("least_tokens"));
}

TEST(RegistryTest, EveryListedPolicyIsMadeUnderItsOwnName) {
  for (const PolicyInfo& info : RegisteredPolicies())
    EXPECT_EQ((*MakePolicy(info.name, {}))->name(), info.name);
}

TEST(RegistryTest, HorizonBeyondTheLimitIsRefusedByName) {
  PolicyOptions options;
  options.horizon = 1;
  const auto policy = MakePolicy("bf_io", options);
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(policy.status().message()), ::testing::HasSubstr("the limit is 0"));
}

TEST(RegistryTest, UnknownObjectiveIsRefusedByName) {
  PolicyOptions options;
  options.objective = "cube";
  EXPECT_THAT(std::string(MakePolicy("bf_io", options).status().message()),
              ::testing::HasSubstr("objective 'cube' is unknown"));
}

}  // namespace
}  // namespace bfio::core
