// Admission by batches follows the costs that the workers have fitted, and their memory.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core::batch_cost_test {

using testing::OneGroup;

// b0 is 16 tokens, so an idle group has no decodes beyond it.
BatchCost Cost(double c_s, double k2_s) {
  return {.c_s = c_s, .a_s_per_token = 1e-5, .b0_tokens = 16, .k2_s_per_token = k2_s};
}

class BatchCosts : public ::testing::Test {
 protected:
  void Open(const std::vector<std::optional<BatchCost>>& costs, std::optional<double> fixed = std::nullopt) {
    SchedulerOptions options;
    options.wait = {WaitAdmissionOptions::Kind::kWait, fixed, 32};
    group_.emplace(options, *MakePolicy("fcfs", {}));
    EXPECT_EQ(wait().memory(), std::numeric_limits<double>::infinity());
    std::vector<EpochMember> members;
    for (const auto& cost : costs)
      members.push_back({.spec = {.slots = 4, .kv_tokens = 100'000, .cost = cost}});
    group_->OpenEpoch(members);
  }
  const WaitAdmission& wait() const { return group_->cluster().pool().wait_admission(); }

  std::optional<OneGroup> group_;
};

TEST_F(BatchCosts, TheGateTakesTheMeanOverWorkersThatHaveReported) {
  Open({std::nullopt, std::nullopt});
  EXPECT_EQ(wait().memory(), 200'000) << "of the members";
  EXPECT_EQ(wait().fixed_tokens(), WaitAdmission::kDefaultFixedTokens);
  group_->SetCost(0, Cost(0.02, 1e-7));
  EXPECT_NEAR(wait().fixed_tokens(), 200'000, 1);
  group_->SetCost(1, Cost(0.04, 2e-7));
  EXPECT_NEAR(wait().fixed_tokens(), 200'000, 1) << "twice as slow throughout";
  group_->SetCost(1, Cost(0.04, 0));
  EXPECT_NEAR(wait().fixed_tokens(), 200'000, 1) << "a fit without a cost of resident tokens does not count";
  group_->SetCost(1, Cost(0.12, 1e-7));
  EXPECT_NEAR(wait().fixed_tokens(), 700'000, 1);
}

TEST_F(BatchCosts, AnEpochBeginsWithItsMembersCostsUnlessTheSettingSaysOtherwise) {
  Open({Cost(0.01, 1e-7), std::nullopt});
  EXPECT_NEAR(wait().fixed_tokens(), 100'000, 1);
  Open({Cost(0.01, 1e-7)}, /*fixed=*/5'000);
  EXPECT_EQ(wait().fixed_tokens(), 5'000);
}

}  // namespace bfio::core::batch_cost_test
