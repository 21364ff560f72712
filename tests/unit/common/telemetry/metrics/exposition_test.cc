#include "common/telemetry/metrics/exposition.h"

#include <gtest/gtest.h>

namespace bfio {
namespace {

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
}

TEST(ExpositionTest, SeveralLabelsDistinguishSeries) {
  constexpr MetricInfo kRankLoad = {"bfio:load_tokens", MetricKind::kGauge, "group, rank", "load"};
  Exposition out;
  out.Add(kRankLoad, 1, {"blue", "0"});
  EXPECT_NE(out.Text().find("bfio:load_tokens{group=\"blue\",rank=\"0\"} 1\n"), std::string::npos)
      << out.Text();
}

TEST(MetricsTableTest, HasARowForEachMetric) {
  const MetricInfo metrics[] = {kSteps, kLoad};
  EXPECT_EQ(MetricsTable("Router", metrics),
            "## Router\n\n| name | kind | label | meaning |\n| --- | --- | --- | --- |\n"
            "| `bfio:steps_total` | counter |  | steps |\n| `bfio:load_tokens` | gauge | rank | load |\n");
}

}  // namespace
}  // namespace bfio
