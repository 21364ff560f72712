#include "tools/loadgen/report.h"

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tools/loadgen/results.h"

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
  r.Add({.code = "OK", .prompt_tokens = 1, .output_tokens = 1, .ttft_s = 1, .e2e_s = 1});
  EXPECT_EQ(r.tpot_s.count(), 1u) << "one token has none";
  EXPECT_EQ(r.ttft_s.count(), 2u);
  EXPECT_EQ(r.output_tokens, 6u);
  EXPECT_EQ(r.prompt_tokens, 101u);
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

TEST(TimelineTest, EveryRequestAndTokenIsCountedInItsBin) {
  Timeline timeline;
  timeline.OnSent(0.2);
  timeline.OnLag(0.2, 0.01);
  timeline.OnEnded({.code = "OK",
                    .output_tokens = 6,
                    .ttft_s = 0.2,
                    .e2e_s = 1.4,
                    .gaps = {{0, 1}, {0.4, 1}, {0.7, 3}},
                    .due_s = 0.2});
  timeline.OnEnded({.code = "INTERNAL", .output_tokens = 1, .ttft_s = 0.1, .e2e_s = 0.2, .due_s = 1.5});
  timeline.OnEnded(
      {.code = "CANCELLED", .interrupted = true, .output_tokens = 1, .ttft_s = 0.1, .due_s = 1.5});
  const auto& bins = timeline.bins();
  ASSERT_EQ(bins.size(), 4u) << "of half a second";
  EXPECT_EQ(bins[0].due, 1u);
  EXPECT_EQ(bins[0].tokens, 2u);
  EXPECT_EQ(bins[1].tokens, 1u);
  EXPECT_EQ(bins[2].tokens, 0u);
  EXPECT_EQ(bins[3].tokens, 5u) << "3 of the first, 1 of each other";
  EXPECT_EQ(bins[0].ttft_s.count(), 1u);
  EXPECT_EQ(bins[3].completed, 1u);
  EXPECT_EQ(bins[3].failed, 1u);
  EXPECT_EQ(bins[3].itl_s.count(), 3u) << "the failed one's are not counted";
  EXPECT_EQ(bins[0].itl_s.count(), 1u) << "the first message's second token, after no time";
}

// A run that fills every part of a report.
class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    options_.arrival = "poisson";
    options_.goodput = {.ttft_s = 0.5};
    trace_.source = "</script><script>alert(1)</script><!--.csv";
    trace_.format = "azure";
    trace_.requests.resize(7);
    trace_.dropped = 3;
    trace_.dropped_examples = {"line 2: x"};
    results_.goodput = Goodput(options_.goodput);
    for (int i = 0; i < 120; ++i) {
      const double due = i * 0.03;
      results_.Sent(due, 0.001 * (i % 7));
      results_.Add({.code = "OK",
                    .prompt_tokens = 10,
                    .output_tokens = 5,
                    .ttft_s = 0.123456 * (1 + i % 5),
                    .e2e_s = 0.123456 * (1 + i % 5) + 0.4,
                    .gaps = {{0.1, 1}, {0.1, 1}, {0.2, 2}},
                    .due_s = due});
    }
    results_.duration_s = 5;
    results_.Add({.code = "UNAVAILABLE", .message = "<worker> & \xff lost", .due_s = 3});
    report_.barrier = BarrierMeasurements{.policy = "fcfs", .ranks = 2, .steps = 50, .idle_fraction = 0.25};
  }

  nlohmann::json Json() { return nlohmann::json::parse(ToJson(report_)); }

  Options options_;
  Trace trace_;
  Results results_;
  Report report_{.options = options_, .trace = trace_, .results = results_, .version = "0.1.0"};
};

TEST_F(ReportTest, JsonHasTheKeysScriptsRead) {
  auto json = Json();
  EXPECT_EQ(json["requests_sent"], 120);
  EXPECT_EQ(json["completed"], 120);
  EXPECT_EQ(json["failed"]["UNAVAILABLE"], 1);
  EXPECT_EQ(json["stream_breaches"], 0);
  EXPECT_EQ(json["output_tokens"], 600);
  EXPECT_EQ(json["throughput_tokens_per_s"], 120.0);
  EXPECT_EQ(json["duration_s"], 5);
  for (const char* latency : {"ttft_s", "tpot_s", "itl_s", "e2e_s"}) {
    for (const char* figure : {"p50", "p90", "p99", "p99.9", "max", "mean"}) {
      EXPECT_TRUE(json[latency][figure].is_number()) << latency << " " << figure;
    }
  }
  EXPECT_EQ(json["settings"]["arrival"], "poisson");
  EXPECT_EQ(json["workload"]["requests"], 7);
  EXPECT_EQ(json["goodput"]["good_requests"], 96);
  EXPECT_EQ(json["goodput"]["missed"]["ttft"], 24);
  EXPECT_EQ(json["barrier"]["idle_fraction"], 0.25);
}

// The data that the page's script reads.
nlohmann::json DataOf(const std::string& html) {
  const std::string opening = "<script id=\"data\" type=\"application/json\">", closing = "</script>";
  const size_t begin = html.find(opening) + opening.size();
  return nlohmann::json::parse(html.substr(begin, html.find(closing, begin) - begin), nullptr, false);
}

TEST_F(ReportTest, ThePageIsSelfContainedAndTextOfARunCannotBecomeMarkup) {
  const std::string html = RunPage(report_);
  EXPECT_THAT(html, HasSubstr("Chart.js v3"));
  EXPECT_THAT(html, HasSubstr("function showRun"));
  EXPECT_THAT(html, Not(HasSubstr("{{")));
  EXPECT_THAT(html, Not(HasSubstr("alert(1)</script>")));
  size_t scripts = 0;
  for (size_t at = html.find("</script"); at != std::string::npos; at = html.find("</script", at + 1))
    ++scripts;
  EXPECT_EQ(scripts, 4u) << "the library, the functions, the data and the program's own";
}

TEST_F(ReportTest, ThePageHasTheKeysOfTheResultAndMore) {
  const auto page = DataOf(RunPage(report_));
  const auto plain = Json();
  for (const auto& [key, value] : plain.items()) EXPECT_EQ(page[key], value) << key;
  const size_t bins = page["series"]["t_s"].size();
  EXPECT_EQ(page["series"]["ttft_s"]["p99"].size(), bins);
  double tokens = 0;
  for (const auto& rate : page["series"]["tokens_per_s"]) tokens += rate.get<double>() * 0.5;
  EXPECT_NEAR(tokens, static_cast<double>(results_.output_tokens), 1e-6);
  const auto& distribution = page["distributions"];
  EXPECT_EQ(distribution["ttft_s"].size(), distribution["share"].size());
  EXPECT_EQ(distribution["ttft_s"].back(), results_.ttft_s.max());
}

v1::ClusterState Reading(int factor) {
  v1::ClusterState state;
  state.mutable_policy()->set_name("bf_io");
  state.mutable_timestamp()->set_seconds(1000);
  state.set_epoch(1);
  for (uint32_t rank = 0; rank < 4; ++rank) state.add_workers()->set_rank(rank);
  v1::StepTotals& totals = *state.mutable_steps();
  totals.set_steps(100 * factor);
  totals.set_imbalance_tokens(5000 * factor);
  totals.set_max_load_tokens(1000 * factor);
  totals.set_mean_load_tokens(900 * factor);
  totals.set_barrier_wait_s(0.8 * factor);
  totals.set_rank_step_s(8 * factor);
  totals.set_gap_s(0.4 * factor);
  totals.set_gap_count(400 * factor);
  totals.set_max_local_s(1.5 * factor);
  totals.set_decisions(100 * factor);
  totals.set_decide_s(0.01 * factor);
  totals.set_late_plans(factor);
  totals.set_saturated_steps(50 * factor);
  totals.set_decisions_stopped_early(2 * factor);
  return state;
}

TEST_F(ReportTest, BarrierStatisticsAreDifferencesOfTwoReadings) {
  v1::ClusterState before = Reading(1), after = Reading(3);
  const auto figures = Between(before, after);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->steps, 200u);
  EXPECT_EQ(figures->ranks, 4u);
  EXPECT_NEAR(figures->idle_fraction, 0.1, 1e-12);
  EXPECT_NEAR(figures->load_idle_fraction, 0.1, 1e-12);
  EXPECT_NEAR(figures->avg_imbalance_tokens, 50, 1e-9);
  EXPECT_NEAR(figures->step_s_mean, 0.02, 1e-12) << "8 s over 100 steps of 4 ranks";
  EXPECT_NEAR(figures->local_s_max_mean, 0.015, 1e-12);
  EXPECT_NEAR(figures->gap_s_mean, 0.001, 1e-12);
  EXPECT_NEAR(figures->decide_s_mean, 0.0001, 1e-12);
  EXPECT_EQ(figures->saturated_fraction, 0.5);
  EXPECT_EQ(figures->decisions_stopped_early, 4u);
  EXPECT_EQ(figures->late_plans, 2u);
  EXPECT_FALSE(figures->epoch_changed);
  report_.barrier = *figures;
  EXPECT_FALSE(Json()["barrier"].contains("energy_busy_j"));
  EXPECT_THAT(ToTable(report_), HasSubstr("idle 10.00 %"));
  EXPECT_THAT(ToTable(report_), Not(HasSubstr("energy")));
  before.set_uncoupled(true);
  after.set_uncoupled(true);
  EXPECT_DOUBLE_EQ(Between(before, after)->step_s_mean, 0.08) << "every step is that of one rank";
}

TEST_F(ReportTest, EnergyIsReportedIfMeasured) {
  v1::ClusterState before = Reading(1), after = Reading(3);
  after.mutable_energy()->set_busy_j(30);
  after.mutable_energy()->set_barrier_j(20);
  after.mutable_energy()->set_parked_j(10);
  EXPECT_EQ(Between(before, after)->energy->busy_j(), 30) << "measured since the run began";
  before.mutable_energy()->set_busy_j(1);
  before.mutable_energy()->set_barrier_j(2);
  before.mutable_energy()->set_parked_j(3);
  report_.barrier = *Between(before, after);
  EXPECT_EQ(Json()["barrier"]["energy_busy_j"], 29);
  EXPECT_EQ(Json()["barrier"]["energy_barrier_j"], 18);
  EXPECT_EQ(Json()["barrier"]["energy_parked_j"], 7);
  EXPECT_THAT(ToTable(report_), HasSubstr("29 J computing, 18 J waiting at the barrier, 7 J parked"));
}

TEST(BarrierTest, ARestartOrNoStepGivesNoStatistics) {
  EXPECT_EQ(Between(Reading(2), Reading(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Between(Reading(1), Reading(1)).status().code(), absl::StatusCode::kUnavailable);
  // The first router was 6 s old before the run, the second is 23 s old after it, and has taken more steps.
  v1::ClusterState after = Reading(3);
  after.mutable_timestamp()->set_seconds(1010);
  EXPECT_EQ(Between(Reading(1), after).status().code(), absl::StatusCode::kUnavailable);
  after.mutable_timestamp()->set_seconds(1001);
  EXPECT_TRUE(Between(Reading(1), after).ok()) << "times are of whole seconds";
  after.mutable_steps()->set_late_plans(0);
  EXPECT_EQ(Between(Reading(1), after).status().code(), absl::StatusCode::kUnavailable) << "not 1.8e19";
}

// --- goodput ---

TEST(GoodputTest, LimitsAreReadByName) {
  EXPECT_FALSE(ParseGoodput("")->any());
  const GoodputLimits all = *ParseGoodput("ttft:0.5,tpot:0.05,e2e:30");
  EXPECT_EQ(all.ttft_s, 0.5);
  EXPECT_EQ(all.tpot_s, 0.05);
  EXPECT_EQ(all.e2e_s, 30);
  EXPECT_EQ(ParseGoodput("e2el:2")->e2e_s, 2) << "vLLM's name";
  const struct {
    const char* text;
    const char* said;
  } kBad[] = {{"ttfb:1", "'ttfb:1'"},
              {"ttft", "''"},
              {"ttft:x", "'x'"},
              {"ttft:0", "'0'"},
              {"ttft:-1", "'-1'"},
              {"ttft:nan", "'nan'"},
              {"ttft:inf", "inf"},
              {"ttft:1,", "''"},
              {"ttft:1,ttft:2", "two limits on ttft"},
              {"e2e:1,e2el:2", "two limits"}};
  for (const auto& bad : kBad) {
    const absl::Status status = ParseGoodput(bad.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.said)) << bad.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--goodput")) << bad.text;
  }
}

// A request of 11 tokens: TPOT is a tenth of the time after the first token.
EndedRequest Request(double ttft_s, double tpot_s) {
  return {.code = "OK", .output_tokens = 11, .ttft_s = ttft_s, .e2e_s = ttft_s + 10 * tpot_s};
}

TEST(GoodputTest, ARequestIsGoodWithinEveryLimit) {
  Goodput goodput({.ttft_s = 1, .tpot_s = 0.5, .e2e_s = 5.5});
  EXPECT_TRUE(goodput.Add(Request(1, 0.25))) << "limits are inclusive";
  EXPECT_FALSE(goodput.Add(Request(1.25, 0.25)));
  EXPECT_FALSE(goodput.Add(Request(0, 0.5625))) << "TPOT, and E2E by that";
  EXPECT_FALSE(goodput.Add(Request(0.75, 0.5))) << "E2E alone";
  EXPECT_EQ(goodput.good(), 1u);
  EXPECT_EQ(goodput.missed_ttft(), 1u);
  EXPECT_EQ(goodput.missed_tpot(), 1u);
  EXPECT_EQ(goodput.missed_e2e(), 2u);
  EXPECT_TRUE(Goodput({.tpot_s = 0.001}).Add({.code = "OK", .output_tokens = 1, .ttft_s = 9, .e2e_s = 9}))
      << "one token has no TPOT to miss";
}

TEST(GoodputTest, FailedAndUnsentAreNotGoodAndInterruptedDoNotCount) {
  Results r = {.goodput = Goodput({.ttft_s = 1})};
  EXPECT_FALSE(r.good_share().has_value());
  r.Add(Request(0.5, 0.1));
  EXPECT_EQ(r.good_share(), 1.0);
  r.Add({.code = "UNAVAILABLE", .ttft_s = 0.1});
  EXPECT_EQ(r.good_share(), 0.5);
  r.not_sent = 2;
  EXPECT_EQ(r.good_share(), 0.25);
  r.Add({.code = "CANCELLED", .interrupted = true});
  EXPECT_EQ(r.good_share(), 0.25);
  r.duration_s = 2;
  EXPECT_EQ(r.good_per_s(), 0.5);
}

}  // namespace
}  // namespace bfio::loadgen
