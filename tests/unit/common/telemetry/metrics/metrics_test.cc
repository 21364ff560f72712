#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "common/base/rng.h"
#include "common/telemetry/metrics/distribution.h"
#include "common/telemetry/metrics/exposition.h"

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

constexpr MetricInfo kSteps = {"bfio:steps_total", MetricKind::kCounter, "", "steps"};
constexpr MetricInfo kLoad = {"bfio:load_tokens", MetricKind::kGauge, "rank", "load"};
constexpr MetricInfo kWait = {"bfio:wait_seconds", MetricKind::kHistogram, "", "wait"};

TEST(ExpositionTest, TheTextFormat) {
  Exposition out;
  out.Add(kLoad, 12, "0");
  out.Add(kSteps, 7);
  out.Add(kLoad, 34.5, "1");
  const double bounds[] = {0.1, 1};
  const uint64_t counts[] = {2, 0, 3};
  out.AddHistogram(kWait, {bounds, counts, 40.25});
  EXPECT_EQ(out.Text(),
            "# HELP bfio:load_tokens load\n# TYPE bfio:load_tokens gauge\n"
            "bfio:load_tokens{rank=\"0\"} 12\nbfio:load_tokens{rank=\"1\"} 34.5\n"
            "# HELP bfio:steps_total steps\n# TYPE bfio:steps_total counter\nbfio:steps_total 7\n"
            "# HELP bfio:wait_seconds wait\n# TYPE bfio:wait_seconds histogram\n"
            "bfio:wait_seconds_count 5\nbfio:wait_seconds_sum 40.25\n"
            "bfio:wait_seconds_bucket{le=\"0.1\"} 2\nbfio:wait_seconds_bucket{le=\"1\"} 2\n"
            "bfio:wait_seconds_bucket{le=\"+Inf\"} 5\n");
}

TEST(ExpositionTest, LabelsAreEscaped) {
  Exposition out;
  out.Add(kLoad, 1, "a\"b\\c\nd");
  EXPECT_NE(out.Text().find("rank=\"a\\\"b\\\\c\\nd\""), std::string::npos) << out.Text();
  constexpr MetricInfo kRankLoad = {"bfio:rank_load", MetricKind::kGauge, "group, rank", "load"};
  out.Add(kRankLoad, 1, {"blue", "0"});
  EXPECT_NE(out.Text().find("bfio:rank_load{group=\"blue\",rank=\"0\"} 1\n"), std::string::npos);
}

}  // namespace
}  // namespace bfio
