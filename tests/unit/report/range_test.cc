#include "tools/report/range.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace bfio::report {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargest = std::numeric_limits<double>::max();

Chart WithY(std::vector<double> y) {
  Chart chart;
  Series series{.name = "s"};
  for (size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i + 1));
  series.y = std::move(y);
  chart.series = {series};
  return chart;
}

TEST(RangeTest, NeverEmptyWhateverTheData) {
  const std::vector<std::vector<double>> cases = {{},
                                                  {0},
                                                  {5},
                                                  {-5, -5},
                                                  {kNotANumber},
                                                  {HUGE_VAL},
                                                  {kLargest},
                                                  {-kLargest, kLargest},
                                                  {5e-324},
                                                  {1e-320, 2e-320},
                                                  {-kLargest, -kLargest},
                                                  {1, 1 + 1e-15}};
  for (const std::vector<double>& y : cases) {
    for (const bool log : {false, true}) {
      for (const auto kind : {Chart::Kind::kLines, Chart::Kind::kBars}) {
        Chart chart = WithY(y);
        chart.kind = kind;
        chart.y.log = log;
        const Range range = YRange(chart);
        EXPECT_LT(range.lo, range.hi) << ::testing::PrintToString(y) << log;
        EXPECT_TRUE(std::isfinite(range.lo) && std::isfinite(range.hi)) << ::testing::PrintToString(y) << log;
        EXPECT_TRUE(!log || range.lo > 0) << ::testing::PrintToString(y);
      }
    }
  }
}

TEST(RangeTest, ValuesFarFromZeroDoNotDragZeroIn) {
  EXPECT_EQ(YRange(WithY({10, 100})).lo, 0);
  EXPECT_EQ(YRange(WithY({90, 100})).lo, 90);
}

TEST(RangeTest, BarsStandOnZero) {
  Chart chart = WithY({90, 100});
  chart.kind = Chart::Kind::kBars;
  EXPECT_EQ(YRange(chart).lo, 0);
}

TEST(RangeTest, IntervalsAndReferencesCount) {
  Chart chart = WithY({90, 100});
  chart.series[0].low = {80, 95};
  chart.series[0].high = {100, 130};
  chart.references = {{"published", 150}, {"broken", kNotANumber}};
  EXPECT_EQ(YRange(chart).lo, 80);
  EXPECT_EQ(YRange(chart).hi, 150);
}

TEST(RangeTest, FixedEndsWinUnlessTheyCross) {
  Chart chart = WithY({1, 2});
  chart.y.min = -3;
  chart.y.max = 7;
  EXPECT_EQ(YRange(chart).lo, -3);
  EXPECT_EQ(YRange(chart).hi, 7);
  chart.y.min = 7;
  EXPECT_EQ(YRange(chart).hi, 2);
  chart.y.max.reset();  // all data below the only fixed end
  EXPECT_EQ(YRange(chart).lo, 7);
  EXPECT_GT(YRange(chart).hi, 7);
}

TEST(RangeTest, PointsBeyondTheXAxisDoNotStretchY) {
  Chart chart = WithY({1, 2, 1000});
  chart.x.max = 2;
  EXPECT_EQ(YRange(chart).hi, 2);
}

TEST(ScaleTest, MapsEndsToEnds) {
  const Scale linear({-kLargest / 4, kLargest / 4}, false, 100, 0);
  EXPECT_EQ(linear.Map(-kLargest / 4), 100);
  EXPECT_EQ(linear.Map(kLargest / 4), 0);
  EXPECT_EQ(linear.Map(0), 50);
  const Scale log({1, 100}, true, 0, 10);
  EXPECT_DOUBLE_EQ(log.Map(10), 5);
  EXPECT_TRUE(std::isfinite(Scale({0, 1e-290}, false, 0, 10).Map(kLargest)));
}

}  // namespace
}  // namespace bfio::report
