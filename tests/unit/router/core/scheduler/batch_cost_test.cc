// Admission by batches follows the costs that the workers have fitted.
#include <gtest/gtest.h>

#include <limits>

#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using testing::OneGroup;

SchedulerOptions WaitOptions(std::optional<double> fixed_tokens = std::nullopt) {
  SchedulerOptions options;
  options.wait = {WaitAdmissionOptions::Kind::kWait, fixed_tokens, 32};
  return options;
}

EpochMember CostMember(std::optional<BatchCost> cost = std::nullopt) {
  EpochMember member;
  member.spec = {.slots = 4, .kv_tokens = 100'000};
  member.spec.cost = cost;
  return member;
}

// b0 is 16 tokens, so an idle group has no decodes beyond it.
BatchCost ContextCost(double c_s, double k2_s) {
  return {.c_s = c_s, .a_s_per_token = 1e-5, .b0_tokens = 16, .k2_s_per_token = k2_s};
}

double FixedTokens(const OneGroup& group) {
  return group.cluster().pool().wait_admission().fixed_tokens();
}

TEST(BatchCosts, TheGateTakesTheMeanOverWorkersThatHaveReported) {
  OneGroup group(WaitOptions(), *MakePolicy("fcfs", {}));
  group.OpenEpoch({CostMember(), CostMember()});
  EXPECT_EQ(FixedTokens(group), WaitAdmission::kDefaultFixedTokens);
  group.SetCost(0, ContextCost(0.02, 1e-7));
  EXPECT_NEAR(FixedTokens(group), 200'000, 1);
  group.SetCost(1, ContextCost(0.04, 2e-7));
  EXPECT_NEAR(FixedTokens(group), 200'000, 1) << "twice as slow throughout";
  group.SetCost(1, ContextCost(0.04, 0));
  EXPECT_NEAR(FixedTokens(group), 200'000, 1) << "a fit without a cost of resident tokens does not count";
  group.SetCost(1, ContextCost(0.12, 1e-7));
  EXPECT_NEAR(FixedTokens(group), 700'000, 1);
}

TEST(BatchCosts, AnEpochBeginsWithTheCostsThatItsMembersHad) {
  OneGroup group(WaitOptions(), *MakePolicy("fcfs", {}));
  group.OpenEpoch({CostMember(ContextCost(0.01, 1e-7)), CostMember()});
  EXPECT_NEAR(FixedTokens(group), 100'000, 1);
}

TEST(BatchMemory, ThresholdsAreBoundedByTheMemoryOfTheMembers) {
  OneGroup group(WaitOptions(), *MakePolicy("fcfs", {}));
  const auto memory = [](const OneGroup& of) { return of.cluster().pool().wait_admission().memory(); };
  EXPECT_EQ(memory(group), std::numeric_limits<double>::infinity());
  group.OpenEpoch({CostMember(), CostMember()});
  EXPECT_EQ(memory(group), 200'000);
}

TEST(BatchCosts, AnExplicitSettingTakesPrecedence) {
  OneGroup group(WaitOptions(5'000), *MakePolicy("fcfs", {}));
  group.OpenEpoch({CostMember(ContextCost(0.01, 1e-7))});
  EXPECT_EQ(FixedTokens(group), 5'000);
}

}  // namespace
}  // namespace bfio::core
