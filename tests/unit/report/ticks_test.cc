#include "tools/report/ticks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::report {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Labels(const Ticks& ticks) {
  std::vector<std::string> labels;
  for (const Tick& tick : ticks.major) labels.push_back(tick.label);
  return labels;
}

bool IsNice(double step) {
  const double mantissa = step / std::pow(10.0, std::floor(std::log10(step) + 1e-9));
  return std::abs(mantissa - 1) < 1e-6 || std::abs(mantissa - 2) < 1e-6 || std::abs(mantissa - 5) < 1e-6;
}

TEST(LinearTicksTest, CoverTheRangeInNiceSteps) {
  std::mt19937_64 random(17);
  std::uniform_real_distribution<double> exponent(-250, 250);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int i = 0; i < 2000; ++i) {
    const double size = std::pow(10.0, exponent(random));
    const double a = size * uniform(random);
    const double b = size * uniform(random);
    if (std::abs(a - b) < 1e-9 * size) continue;
    const Range range = {std::min(a, b), std::max(a, b)};
    const Ticks ticks = LinearTicks(range, 5, {});
    ASSERT_GE(ticks.major.size(), 2u);
    ASSERT_LE(ticks.major.size(), 8u);
    EXPECT_LE(ticks.range.lo, range.lo);
    EXPECT_GE(ticks.range.hi, range.hi);
    const double step = ticks.major[1].value - ticks.major[0].value;
    EXPECT_TRUE(IsNice(step)) << range.lo << " " << range.hi << " " << step;
    EXPECT_LE(ticks.major.front().value, range.lo + 1e-6 * step);
    EXPECT_GE(ticks.major.back().value, range.hi - 1e-6 * step);
  }
}

TEST(LinearTicksTest, NoTwoTicksHaveTheSameLabel) {
  for (const Range range : {Range{0, 1}, Range{-3e-7, 5e-7}, Range{0, 3.4e6}, Range{1e6, 1.00001e6},
                            Range{0, 2e22}, Range{-5e307, 5e307}, Range{99.99, 100.01}}) {
    const std::vector<std::string> labels = Labels(LinearTicks(range, 6, {}));
    EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), labels.size())
        << ::testing::PrintToString(labels);
  }
}

TEST(LinearTicksTest, LabelsAreShortAndAlike) {
  EXPECT_THAT(Labels(LinearTicks({0, 20000}, 4, {})),
              ElementsAre("0", "5,000", "10,000", "15,000", "20,000"));
  EXPECT_THAT(Labels(LinearTicks({0, 1}, 4, {})), ElementsAre("0", "0.5", "1.0"));
  EXPECT_THAT(Labels(LinearTicks({0, 5e6}, 2, {})), ElementsAre("0", "5 M"));
  EXPECT_THAT(Labels(LinearTicks({0, 2.5e9}, 5, {})),
              ElementsAre("0", "0.5 G", "1.0 G", "1.5 G", "2.0 G", "2.5 G"));
  EXPECT_THAT(Labels(LinearTicks({0, 2e-6}, 2, {})), ElementsAre("0", "10⁻⁶", "2×10⁻⁶"));
}

TEST(LinearTicksTest, FixedEndsStayAndTicksStayInside) {
  const Ticks ticks = LinearTicks({0.3, 9.7}, 5, {false, false});
  EXPECT_EQ(ticks.range.lo, 0.3);
  EXPECT_EQ(ticks.range.hi, 9.7);
  EXPECT_THAT(Labels(ticks), ElementsAre("2", "4", "6", "8"));
}

TEST(LogTicksTest, ShortRangesHaveTwoAndFive) {
  EXPECT_THAT(Labels(LogTicks({3, 80}, 6, {})), ElementsAre("2", "5", "10", "20", "50", "100"));
}

TEST(LogTicksTest, LongRangesHaveDecadesAndVeryLongOnesEveryNth) {
  EXPECT_THAT(Labels(LogTicks({1, 1e4}, 5, {})), ElementsAre("1", "10", "100", "1,000", "10,000"));
  const Ticks ticks = LogTicks({1e-30, 1e30}, 6, {});
  EXPECT_GE(ticks.major.size(), 5u);
  EXPECT_LE(ticks.major.size(), 8u);
  EXPECT_TRUE(ticks.minor.empty());
}

TEST(LogTicksTest, CoverTheRange) {
  for (const Range range :
       {Range{0.7, 0.8}, Range{1e-300, 5e307}, Range{1, 10}, Range{999, 1001}, Range{3e-9, 2}}) {
    const Ticks ticks = LogTicks(range, 5, {});
    EXPECT_GE(ticks.major.size(), 2u) << range.lo;
    EXPECT_LE(ticks.range.lo, range.lo);
    EXPECT_GE(ticks.range.hi, range.hi);
    for (const Tick& tick : ticks.major) {
      EXPECT_GE(tick.value, ticks.range.lo * (1 - 1e-6));
      EXPECT_LE(tick.value, ticks.range.hi * (1 + 1e-6));
    }
  }
}

TEST(LogTicksTest, NarrowFixedEndsStillHaveTicks) {
  EXPECT_GE(LogTicks({3.1, 3.9}, 5, {false, false}).major.size(), 2u);
}

}  // namespace
}  // namespace bfio::report
