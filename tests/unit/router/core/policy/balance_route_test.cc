// The score of br0 and br_h, and the choice of subsets; decisions_test.cc has decisions.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "common/base/rng.h"
#include "router/core/policy/balance_route/balance_route.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

// With beta = G the score is the reduction of G max L - sum L by the request.
TEST(MarginScoreTest, IsTheChangeOfTheImbalanceExactly) {
  Rng rng(5);
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<double> loads;
    for (int g = 0; g < 4; ++g) loads.push_back(static_cast<double>(rng.Below(100)));
    const auto imbalance = [&] {
      return 4 * *std::max_element(loads.begin(), loads.end()) -
             std::accumulate(loads.begin(), loads.end(), 0.0);
    };
    const double before = imbalance();
    MarginScore score(4, 1);
    score.Reset({loads[1]}, {*std::max_element(loads.begin(), loads.end())});
    const int64_t tokens = static_cast<int64_t>(rng.Below(150));
    loads[1] += static_cast<double>(tokens);
    EXPECT_DOUBLE_EQ(score(tokens), before - imbalance());
  }
}

TEST(MarginScoreTest, StepsAheadCountLess) {
  MarginScore score(43, 0.5);
  score.Reset({70, 95}, {100, 100});
  EXPECT_DOUBLE_EQ(score(5), 5 * 1.5);
  EXPECT_DOUBLE_EQ(score(10), 10 * 1.5 - 43 * 0.5 * 5);
  EXPECT_DOUBLE_EQ(score(40), 40 * 1.5 - 43 * (10 + 0.5 * 35));
  EXPECT_EQ(score.safe(), 5);
}

// Reference: tries every k-subset.
int64_t BestSum(const std::vector<int64_t>& sizes, int k, int64_t limit) {
  int64_t below = -1, least = -1;
  for (uint32_t set = 0; set < 1u << sizes.size(); ++set) {
    if (__builtin_popcount(set) != k) continue;
    int64_t sum = 0;
    for (size_t i = 0; i < sizes.size(); ++i) sum += (set >> i & 1) ? sizes[i] : 0;
    if (sum <= limit) below = std::max(below, sum);
    if (least < 0 || sum < least) least = sum;
  }
  return below >= 0 ? below : least;
}

TEST(SubsetSumTest, AsGoodAsTryingAllSubsets) {
  Rng rng(6);
  SubsetSum subset_sum;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int64_t> sizes(1 + rng.Below(10));
    for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(rng.Below(300));
    const int k = 1 + static_cast<int>(rng.Below(sizes.size()));
    const int64_t limit = static_cast<int64_t>(rng.Below(900));
    const std::vector<int32_t> chosen = subset_sum.Best(sizes, k, limit);
    int64_t sum = 0;
    for (int32_t i : chosen) sum += sizes[i];
    ASSERT_EQ(chosen.size(), static_cast<size_t>(k)) << "in trial " << trial;
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()) &&
                std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
    ASSERT_EQ(sum, BestSum(sizes, k, limit)) << "in trial " << trial;
  }
}

TEST(SubsetSumTest, LargeSizesTakeNoMoreTimeAndMemory) {
  SubsetSum subset_sum;
  std::vector<int64_t> sizes = {1'000'000'000, 2'000'000'000, 500'000'000, 1};
  EXPECT_THAT(subset_sum.Best(sizes, 1, 1'999'999'999), ElementsAre(0));
  EXPECT_THAT(subset_sum.Best(sizes, 2, 1'600'000'000), ElementsAre(0, 2));
  EXPECT_THAT(subset_sum.Best(sizes, 2, 2'999'000'000), ElementsAre(1, 2)) << "3e9 is above the limit";
}

}  // namespace
}  // namespace bfio::core
