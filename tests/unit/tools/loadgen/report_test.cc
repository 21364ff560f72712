#include "tools/loadgen/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/loadgen/progress.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// TTFT 1 s, then 4 tokens in 2 s: one after 0.5 s, and three in one message after 1.5 s.
EndedRequest FiveTokens() {
  return {.code = "OK",
          .prompt_tokens = 100,
          .output_tokens = 5,
          .ttft_s = 1,
          .e2e_s = 3,
          .gaps = {{.gap_s = 0.5, .tokens = 1}, {.gap_s = 1.5, .tokens = 3}}};
}

TEST(ResultsTest, LatenciesFollowTheirDefinitions) {
  Results r;
  r.Add(FiveTokens());
  EXPECT_EQ(r.completed, 1u);
  EXPECT_EQ(r.ttft_s.max(), 1);
  EXPECT_EQ(r.e2e_s.max(), 3);
  EXPECT_EQ(r.tpot_s.max(), 0.5) << "(e2e - ttft) / (n - 1)";
  EXPECT_EQ(r.itl_s.count(), 4u) << "a gap for each token after the first";
  EXPECT_EQ(r.itl_s.max(), 0.5);
  EXPECT_EQ(r.output_tokens, 5u);
  EXPECT_EQ(r.prompt_tokens, 100u);
}

TEST(ResultsTest, OneTokenHasNoTpot) {
  Results r;
  r.Add({.code = "OK", .prompt_tokens = 1, .output_tokens = 1, .ttft_s = 1, .e2e_s = 1});
  EXPECT_EQ(r.tpot_s.count(), 0u);
  EXPECT_EQ(r.ttft_s.count(), 1u);
}

TEST(ResultsTest, FailuresAreCountedByCodeAndKeptOutOfLatencies) {
  Results r;
  r.Add({.code = "UNAVAILABLE", .message = "first", .output_tokens = 3, .ttft_s = 1, .e2e_s = 2});
  r.Add({.code = "UNAVAILABLE", .message = "second"});
  r.Add({.code = "DEADLINE_EXCEEDED", .message = "late"});
  EXPECT_EQ(r.failed_total(), 3u);
  EXPECT_EQ(r.failed.at("UNAVAILABLE"), 2u);
  EXPECT_EQ(r.failed_examples.at("UNAVAILABLE"), "first");
  EXPECT_EQ(r.e2e_s.count(), 0u);
  EXPECT_EQ(r.output_tokens, 3u) << "tokens of failed requests were produced all the same";
}

TEST(ResultsTest, ExitCodesRankErrors) {
  Results good;
  EXPECT_EQ(ExitCode(good, false), 1) << "nothing completed";
  good.Add(FiveTokens());
  EXPECT_EQ(ExitCode(good, false), 0);
  Results failed = good;
  failed.Add({.code = "UNAVAILABLE"});
  EXPECT_EQ(ExitCode(failed, false), 1);
  Results broken = failed;
  broken.Add({.code = "OK", .breach = "x"});
  EXPECT_EQ(ExitCode(broken, false), 3);
  EXPECT_EQ(ExitCode(broken, true), 130);
}

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    trace_.source = "t.csv";
    trace_.format = "azure";
    trace_.requests.resize(7);
    results_.requests_sent = 2;
    results_.duration_s = 2.5;
    results_.Add(FiveTokens());
  }

  nlohmann::json Json() { return nlohmann::json::parse(ToJson(report_)); }

  Options options_;
  Trace trace_;
  Results results_;
  Report report_{.options = options_, .trace = trace_, .results = results_, .version = "0.1.0"};
};

TEST_F(ReportTest, JsonHasTheKeysScriptsRead) {
  results_.Add({.code = "UNAVAILABLE", .message = "gone"});
  const auto json = Json();
  EXPECT_EQ(json["requests_sent"], 2);
  EXPECT_EQ(json["completed"], 1);
  EXPECT_EQ(json["failed"]["UNAVAILABLE"], 1);
  EXPECT_EQ(json["stream_breaches"], 0);
  EXPECT_EQ(json["output_tokens"], 5);
  EXPECT_EQ(json["throughput_tokens_per_s"], 2.0);
  EXPECT_EQ(json["duration_s"], 2.5);
  for (const char* latency : {"ttft_s", "tpot_s", "itl_s", "e2e_s"}) {
    for (const char* figure : {"p50", "p90", "p99", "p99.9", "max", "mean"}) {
      EXPECT_TRUE(json[latency][figure].is_number()) << latency << " " << figure;
    }
  }
  EXPECT_EQ(json["settings"]["arrival"], "closed");
  EXPECT_EQ(json["workload"]["requests"], 7);
  EXPECT_FALSE(json.contains("barrier"));
}

TEST_F(ReportTest, NoFailuresIsAnEmptyObjectAndNoSamplesAreNull) {
  EXPECT_TRUE(Json()["failed"].is_object());
  EXPECT_TRUE(Json()["failed"].empty());
  EXPECT_TRUE(Json()["schedule_lag_s"]["p99"].is_null());
}

TEST_F(ReportTest, TextThatIsNotUtf8StillMakesJson) {
  results_.Add({.code = "INTERNAL", .message = "\xff\xfe"});
  EXPECT_EQ(Json()["failed"]["INTERNAL"], 1);
}

TEST_F(ReportTest, TheTableShowsErrors) {
  EXPECT_THAT(ToTable(report_), Not(HasSubstr("broken stream ")));
  results_.Add({.code = "OK", .breach = "request 7: token index 2 came where 1 was expected"});
  results_.Add({.code = "UNAVAILABLE", .message = "worker lost"});
  trace_.dropped = 3;
  trace_.dropped_examples = {"line 2: x"};
  const std::string table = ToTable(report_);
  EXPECT_THAT(table, HasSubstr("token index 2 came where 1 was expected"));
  EXPECT_THAT(table, HasSubstr("UNAVAILABLE: 1, first: worker lost"));
  EXPECT_THAT(table, HasSubstr("bad trace rows 3, first: line 2: x"));
}

BarrierReading Reading(double factor) {
  return {.policy = "bf_io",
          .epoch = 1,
          .ranks = 4,
          .started_s = 1000,
          .steps = static_cast<uint64_t>(100 * factor),
          .imbalance_tokens = 5000 * factor,
          .max_load_tokens = 1000 * factor,
          .mean_load_tokens = 900 * factor,
          .barrier_wait_s = 0.8 * factor,
          .rank_step_s = 8 * factor,
          .gap_s = 0.4 * factor,
          .gap_count = static_cast<uint64_t>(400 * factor),
          .max_local_s = 1.5 * factor,
          .decisions = static_cast<uint64_t>(100 * factor),
          .decide_s = 0.01 * factor,
          .late_plans = static_cast<uint64_t>(factor),
          .saturated_steps = static_cast<uint64_t>(50 * factor),
          .decisions_stopped_early = static_cast<uint64_t>(2 * factor)};
}

TEST_F(ReportTest, BarrierStatisticsAreDifferencesOfTwoReadings) {
  const auto figures = Between(Reading(1), Reading(3));
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->steps, 200u);
  EXPECT_NEAR(figures->idle_fraction, 0.1, 1e-12);
  EXPECT_NEAR(figures->load_idle_fraction, 0.1, 1e-12);
  EXPECT_NEAR(figures->avg_imbalance_tokens, 50, 1e-9);
  EXPECT_NEAR(figures->step_s_mean, 0.02, 1e-12) << "8 s over 100 steps of 4 ranks";
  EXPECT_NEAR(figures->gap_s_mean, 0.001, 1e-12);
  EXPECT_NEAR(figures->decide_s_mean, 0.0001, 1e-12);
  EXPECT_EQ(figures->saturated_fraction, 0.5);
  EXPECT_EQ(figures->decisions_stopped_early, 4u);
  EXPECT_FALSE(figures->energy.has_value());
  EXPECT_FALSE(figures->epoch_changed);
  report_.barrier = *figures;
  EXPECT_NEAR(Json()["barrier"]["idle_fraction"].get<double>(), 0.1, 1e-12);
  EXPECT_THAT(ToTable(report_), HasSubstr("idle 10.00 %"));
}

TEST_F(ReportTest, EnergyIsReportedIfMeasured) {
  BarrierReading before = Reading(1), after = Reading(3);
  report_.barrier = *Between(before, after);
  EXPECT_FALSE(Json()["barrier"].contains("energy_busy_j"));
  EXPECT_THAT(ToTable(report_), ::testing::Not(HasSubstr("energy")));
  after.energy = EnergyJoules{30, 20, 10};
  EXPECT_EQ(Between(before, after)->energy->busy, 30) << "measured since the run began";
  before.energy = EnergyJoules{1, 2, 3};
  report_.barrier = *Between(before, after);
  EXPECT_EQ(Json()["barrier"]["energy_busy_j"], 29);
  EXPECT_EQ(Json()["barrier"]["energy_barrier_j"], 18);
  EXPECT_EQ(Json()["barrier"]["energy_parked_j"], 7);
  EXPECT_EQ(Json()["barrier"]["decisions_stopped_early"], 4);
  EXPECT_THAT(ToTable(report_), HasSubstr("29 J computing, 18 J waiting at the barrier, 7 J parked"));
}

TEST(BarrierTest, WithoutABarrierEveryStepIsThatOfOneRank) {
  BarrierReading before = Reading(1), after = Reading(3);
  const double together = Between(before, after)->step_s_mean;
  before.uncoupled = after.uncoupled = true;
  EXPECT_DOUBLE_EQ(Between(before, after)->step_s_mean, together * after.ranks);
}

TEST(BarrierTest, ARestartOrNoStepGivesNoStatistics) {
  EXPECT_EQ(Between(Reading(2), Reading(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Between(Reading(1), Reading(1)).status().code(), absl::StatusCode::kUnavailable);
  // The first router was 6 s old before the run, the second is 23 s old after it, and has taken more steps.
  BarrierReading after = Reading(3);
  after.started_s += 10;
  EXPECT_EQ(Between(Reading(1), after).status().code(), absl::StatusCode::kUnavailable);
  after = Reading(3);
  after.late_plans = 0;
  EXPECT_EQ(Between(Reading(1), after).status().code(), absl::StatusCode::kUnavailable) << "not 1.8e19";
  after = Reading(3);
  after.started_s += 1;
  EXPECT_TRUE(Between(Reading(1), after).ok()) << "times are of whole seconds";
}

TEST(ProgressTest, ProgressFollowsTheNearerEnd) {
  EXPECT_EQ(ProgressFraction({.elapsed_s = 5, .duration_s = 10, .total = 100, .completed = 70, .failed = 10}),
            0.8);
  EXPECT_EQ(ProgressFraction({.elapsed_s = 5, .duration_s = 10}), 0.5);
  EXPECT_EQ(ProgressFraction({.elapsed_s = 50, .duration_s = 10}), 1);
  EXPECT_EQ(ProgressFraction({}), 0);
  EXPECT_EQ(ProgressText({.total = 9, .completed = 3, .failed = 1, .under_way = 2}, 12.4),
            "4 of 9 done, 2 under way, 1 failed, 12 tokens/s");
}

}  // namespace
}  // namespace bfio::loadgen
