#include "worker/metrics/worker_metrics.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A rank with a value in every field.
RankTelemetry Known() {
  RankTelemetry rank = {.worker_id = "w0",
                        .connected = true,
                        .in_epoch = true,
                        .steps = 5,
                        .failed_requests = 6,
                        .kv_tokens = 1000,
                        .free_kv_tokens = 400,
                        .undelivered_tokens = 11};
  rank.cost.c = FittedValue{0.004, 0.001};
  rank.cost.tl = FittedValue{2e-7, 1e-9};
  rank.barrier_j = 4.5;
  return rank;
}

std::set<std::string> Exposed(const std::string& text) {
  std::set<std::string> names;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) names.emplace(line.substr(0, line.find(' ')));
  }
  return names;
}

// A value that is not known must be absent: zero joules would be wrong.
TEST(WorkerMetricsTest, UnknownValuesAreAbsent) {
  RankTelemetry fresh = {.worker_id = "w1"};
  const RankTelemetry ranks[] = {Known(), fresh};
  const std::string text = MetricsText("1", 0, ranks);
  for (const char* name :
       {"step_cost_fixed_seconds", "step_cost_token_seconds", "energy_barrier_joules_total"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("bfio:worker_", name, "{worker=\"w0\"}")));
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("bfio:worker_", name, "{worker=\"w1\"}"))));
  }
  EXPECT_THAT(text, HasSubstr("\nbfio:worker_connected{worker=\"w1\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr(" nan")));
}

TEST(WorkerMetricsTest, TheListHasEveryExposedMetric) {
  std::set<std::string> listed;
  for (const MetricInfo& info : WorkerMetrics()) {
    EXPECT_TRUE(listed.emplace(info.name).second) << info.name << " twice";
    EXPECT_EQ(info.kind == MetricKind::kCounter, absl::EndsWith(info.name, "_total")) << info.name;
    EXPECT_TRUE(absl::StartsWith(info.name, "bfio:worker_"))
        << info.name << ": not to be taken for a router's";
    EXPECT_FALSE(info.help.empty()) << info.name;
  }
  const RankTelemetry ranks[] = {Known()};
  EXPECT_EQ(Exposed(MetricsText("1", 0, ranks)), listed);
}

}  // namespace
}  // namespace bfio::worker
