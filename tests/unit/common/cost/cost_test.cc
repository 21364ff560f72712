#include <vector>

#include "common/cost/step_time.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

TEST(StepCostTest, DefaultsAreThePapersConstants) {
  const StepCost cost;
  EXPECT_NEAR(cost.c_s, (0.6e-3 * 72 + 35e-3) / 16, 1e-12);
  EXPECT_NEAR(cost.tl_s_per_token, 1.5 * 2 * 576 * 61e-6 / (1 << 20), 1e-12);
  EXPECT_DOUBLE_EQ(cost.StepSeconds(0), 4.8875e-3);
  EXPECT_DOUBLE_EQ(cost.StepSeconds(100000), 4.8875e-3 + 1.00525e-2);
}

TEST(StepCostTest, PrefillTokensAddTheirCost) {
  const StepCost cost = {.c_s = 1, .tl_s_per_token = 0.5, .prefill_s_per_token = 0.25};
  EXPECT_DOUBLE_EQ(cost.StepSeconds(2, 4), 3);
}

}  // namespace
}  // namespace bfio
