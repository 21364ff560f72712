#include "common/telemetry/metrics/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/rng.h"

namespace bfio {
namespace {

using ::testing::ElementsAre;

TEST(DistributionTest, BoundsAreInclusiveAndTheLastBucketIsOpen) {
  Distribution d({1, 2, 4});
  for (double value : {-3.0, 1.0, 1.5, 2.0, 4.0, 4.1, 1e9}) d.Add(value);
  d.Add(3, 5);
  d.Add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(d.counts(), ElementsAre(2, 2, 6, 2));
  EXPECT_EQ(d.count(), 12u);
  EXPECT_DOUBLE_EQ(d.sum(), -3 + 1 + 1.5 + 2 + 4 + 4.1 + 1e9 + 15);
}

TEST(DistributionTest, PresetBoundsAscend) {
  for (const auto& bounds : {RequestSeconds(), StepSeconds(), TokenCounts()}) {
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<>()));
  }
}

TEST(DistributionTest, SumsCoverAllMeasurements) {
  Rng rng(4);
  Distribution a(RequestSeconds()), b(RequestSeconds()), both(RequestSeconds());
  for (int i = 0; i < 1000; ++i) {
    const double value = std::exp(10 * rng.Uniform() - 7);
    (i % 3 == 0 ? a : b).Add(value);
    both.Add(value);
  }
  a += b;
  EXPECT_EQ(a.counts(), both.counts());
  EXPECT_EQ(a.count(), both.count());
  EXPECT_NEAR(a.sum(), both.sum(), 1e-9 * both.sum());
  a += Distribution(RequestSeconds());
  EXPECT_EQ(a.count(), 1000u);
}

TEST(BucketQuantileTest, IsInTheBucketOfTheExactQuantile) {
  Rng rng(3);
  const std::vector<double> bounds = RequestSeconds();
  for (int round = 0; round < 200; ++round) {
    Distribution d(bounds);
    std::vector<double> values;
    const int count = 1 + static_cast<int>(rng.Below(50));
    for (int i = 0; i < count; ++i) {
      values.push_back(std::exp(10 * rng.Uniform() - 7));
      d.Add(values.back());
    }
    std::sort(values.begin(), values.end());
    const double q = rng.Uniform();
    const double exact = values[static_cast<size_t>(std::max(0.0, std::ceil(q * count) - 1))];
    const auto above = std::lower_bound(bounds.begin(), bounds.end(), exact);
    const double low = above == bounds.begin() ? 0 : *(above - 1);
    const double high = above == bounds.end() ? bounds.back() : *above;
    EXPECT_GE(BucketQuantile(bounds, d.counts(), q), low);
    EXPECT_LE(BucketQuantile(bounds, d.counts(), q), high);
  }
  EXPECT_EQ(BucketQuantile({1, 2}, {0, 0, 0}, 0.5), 0);
  EXPECT_EQ(BucketQuantile({1, 2}, {0, 0, 7}, 0.5), 2);
}

}  // namespace
}  // namespace bfio
