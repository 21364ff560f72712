#include "common/stats/histogram.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "common/base/rng.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

constexpr double kQuantiles[] = {0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};

double ExactQuantile(const std::vector<double>& sorted, double q) {
  const auto rank =
      static_cast<size_t>(std::max(1.0, std::ceil(q * static_cast<double>(sorted.size()) - 1e-6)));
  return sorted[rank - 1];
}

TEST(HistogramTest, QuantilesAreWithinTheBoundOfAnExactSort) {
  Rng rng(1);
  const std::function<double()> kDistributions[] = {
      [&] { return rng.Uniform(); },
      [&] { return rng.Exponential() * 1e-3; },
      [&] { return std::exp(3 * rng.Normal()); },
      [&] { return rng.Below(2) == 0 ? 1e-6 : 100.0; },
  };
  for (const auto& draw : kDistributions) {
    Histogram histogram;
    std::vector<double> values;
    double sum = 0;
    for (int i = 0; i < 50000; ++i) {
      values.push_back(draw());
      sum += values.back();
      histogram.Add(values.back());
    }
    std::sort(values.begin(), values.end());
    for (const double q : kQuantiles) {
      const double exact = ExactQuantile(values, q);
      EXPECT_NEAR(histogram.Quantile(q), exact, exact * Histogram::kRelativeError * 1.0001 + 1e-9) << q;
    }
    EXPECT_EQ(histogram.min(), values.front());
    EXPECT_EQ(histogram.max(), values.back());
    EXPECT_NEAR(histogram.mean(), sum / 50000, 1e-9 * sum);
  }
}

TEST(HistogramTest, MergingEqualsAddingTogether) {
  Rng rng(2);
  Histogram parts[3], whole;
  for (int i = 0; i < 9000; ++i) {
    const double value = std::exp(2 * rng.Normal());
    parts[i % 3].Add(value);
    whole.Add(value);
  }
  Histogram merged;
  for (const Histogram& part : parts) merged.Merge(part);
  merged.Merge(Histogram());
  EXPECT_EQ(merged.count(), whole.count());
  EXPECT_NEAR(merged.sum(), whole.sum(), 1e-6);
  for (const double q : kQuantiles) EXPECT_EQ(merged.Quantile(q), whole.Quantile(q));
}

TEST(HistogramTest, NothingOrOneSampleIsExact) {
  Histogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.mean(), 0);
  EXPECT_EQ(histogram.max(), 0);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  histogram.Add(0.123456789);
  for (const double q : kQuantiles) EXPECT_EQ(histogram.Quantile(q), 0.123456789);
}

TEST(HistogramTest, ExtremesAreClippedNotLostAndSamplesCountByTheirWeight) {
  Histogram extremes;
  for (const double value : {-1.0, 0.0, 1e-300, HUGE_VAL, std::nan("")}) extremes.Add(value);
  EXPECT_EQ(extremes.count(), 4u);
  EXPECT_EQ(extremes.min(), 0);
  EXPECT_LE(extremes.Quantile(0.5), Histogram::kSmallest);
  Histogram weighted;
  weighted.Add(1, 99);
  weighted.Add(5, 1);
  weighted.Add(7, 0);
  EXPECT_EQ(weighted.count(), 100u);
  EXPECT_NEAR(weighted.Quantile(0.99), 1, 0.005);
  EXPECT_EQ(weighted.max(), 5);
  EXPECT_NEAR(weighted.mean(), 1.04, 1e-12);
}

}  // namespace
}  // namespace bfio
