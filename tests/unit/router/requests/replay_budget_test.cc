#include "router/requests/replay_budget.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/rng.h"

namespace bfio::router {
namespace {

TEST(ReplayBudget, BoundsTheSumAndEachRequest) {
  ReplayBudget budget(100, 60);
  using Outcome = ReplayBudget::Outcome;
  int64_t a = 0, b = 0;
  EXPECT_EQ(budget.Charge(a, 60), Outcome::kKept);
  EXPECT_EQ(budget.Charge(a, 1), Outcome::kRequestTooLarge);
  EXPECT_EQ(budget.Charge(b, 41), Outcome::kFull);
  EXPECT_EQ(budget.Charge(b, 40), Outcome::kKept);
  budget.Release(a);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(budget.used(), 40);
  budget.Release(a);
  EXPECT_EQ(budget.used(), 40);
}

TEST(ReplayBudget, TheTotalIsTheSumOfItsRequests) {
  Rng rng(1);
  ReplayBudget budget(1000, 300);
  std::vector<int64_t> held(8, 0);
  for (int i = 0; i < 10'000; ++i) {
    int64_t& one = held[rng.Below(held.size())];
    if (rng.Below(4) == 0) {
      budget.Release(one);
    } else {
      const auto bytes = static_cast<int64_t>(rng.Below(200));
      const int64_t before = one;
      const bool kept = budget.Charge(one, bytes) == ReplayBudget::Outcome::kKept;
      ASSERT_EQ(one, kept ? before + bytes : before);
    }
    int64_t sum = 0;
    for (const int64_t bytes : held) {
      ASSERT_LE(bytes, 300);
      sum += bytes;
    }
    ASSERT_EQ(budget.used(), sum);
    ASSERT_LE(sum, 1000);
  }
}

}  // namespace
}  // namespace bfio::router
