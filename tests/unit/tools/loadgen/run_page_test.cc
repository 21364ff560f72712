#include "tools/loadgen/run_page.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/loadgen/report.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  const auto& bins = timeline.bins().bins();
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

TEST(TimelineTest, ALongRunHasWiderBinsAndLosesNothing) {
  Timeline timeline;
  for (int i = 0; i < 100000; ++i) {
    timeline.OnSent(i);
    timeline.OnEnded({.code = "OK", .output_tokens = 1, .ttft_s = 0.1, .e2e_s = 0.2, .due_s = i * 1.0});
  }
  timeline.OnSent(-5);
  timeline.OnSent(NAN);
  const auto& bins = timeline.bins();
  EXPECT_LE(bins.bins().size(), TimeBins<TimelineBin>::kMost);
  EXPECT_GE(bins.bins().size(), TimeBins<TimelineBin>::kMost / 2);
  EXPECT_GE(bins.width_s() * static_cast<double>(bins.bins().size()), 100000);
  uint64_t due = 0, completed = 0, tokens = 0, samples = 0;
  for (const TimelineBin& bin : bins.bins()) {
    due += bin.due;
    completed += bin.completed;
    tokens += bin.tokens;
    samples += bin.ttft_s.count();
  }
  EXPECT_EQ(due, 100002u);
  EXPECT_EQ(completed, 100000u);
  EXPECT_EQ(tokens, 100000u);
  EXPECT_EQ(samples, 100000u);
  timeline.OnSent(1e300);
  EXPECT_LE(timeline.bins().bins().size(), TimeBins<TimelineBin>::kMost);
}

// A run that fills every part of the page.
class RunPageTest : public ::testing::Test {
 protected:
  RunPageTest() {
    options_.arrival = "sweep";
    options_.rates = {20, 40};
    options_.step_duration_s = 2;
    options_.goodput = {.ttft_s = 0.5};
    trace_.source = "</script><script>alert(1)</script><!--.csv";
    trace_.format = "azure";
    trace_.requests.resize(7);
    results_.goodput = Goodput(options_.goodput);
    results_.levels = Levels(options_.levels());
    for (int i = 0; i < 120; ++i) {
      const uint32_t level = i >= 40;
      const double due = level == 0 ? i * 0.05 : 2 + (i - 40) * 0.025;
      if (i % 40 == 0 && i < 80) results_.levels.Begin(level, due);
      results_.Sent(due, level, 0.001 * (i % 7));
      results_.Add({.code = "OK",
                    .prompt_tokens = 10,
                    .output_tokens = 5,
                    .ttft_s = 0.123456 * (1 + i % 5),
                    .e2e_s = 0.123456 * (1 + i % 5) + 0.4,
                    .gaps = {{0.1, 1}, {0.1, 1}, {0.2, 2}},
                    .due_s = due,
                    .level = level});
    }
    results_.duration_s = 5;
    results_.Add({.code = "UNAVAILABLE", .message = "<worker> & \xff lost", .due_s = 3, .level = 1});
    report_.barrier = BarrierMeasurements{.policy = "fcfs", .ranks = 2, .steps = 50, .idle_fraction = 0.25};
  }

  Options options_;
  Trace trace_;
  Results results_;
  Report report_{.options = options_, .trace = trace_, .results = results_, .version = "0.1.0"};
};

// The data that the page's script reads.
nlohmann::json DataOf(const std::string& html) {
  const std::string opening = "<script id=\"data\" type=\"application/json\">", closing = "</script>";
  const size_t begin = html.find(opening) + opening.size();
  return nlohmann::json::parse(html.substr(begin, html.find(closing, begin) - begin), nullptr, false);
}

TEST_F(RunPageTest, ThePageIsSelfContained) {
  const std::string html = RunPage(report_);
  EXPECT_THAT(html, HasSubstr("Chart.js v3"));
  EXPECT_THAT(html, HasSubstr("function showRun"));
  EXPECT_THAT(html, Not(HasSubstr("{{")));
}

TEST_F(RunPageTest, TextOfARunCannotBecomeMarkup) {
  const std::string html = RunPage(report_);
  EXPECT_THAT(html, Not(HasSubstr("alert(1)</script>")));
  size_t scripts = 0;
  for (size_t at = html.find("</script"); at != std::string::npos; at = html.find("</script", at + 1))
    ++scripts;
  EXPECT_EQ(scripts, 4u) << "the library, the functions, the data and the program's own";
  EXPECT_EQ(DataOf(html)["workload"]["source"], trace_.source);
}

TEST_F(RunPageTest, ThePageHasTheKeysOfTheResultAndMore) {
  const auto plain = nlohmann::json::parse(ToJson(report_));
  const auto page = DataOf(RunPage(report_));
  for (const auto& [key, value] : plain.items()) EXPECT_EQ(page[key], value) << key;
  EXPECT_FALSE(plain.contains("series"));
  EXPECT_EQ(plain["goodput"]["good_requests"], 96);
  EXPECT_EQ(plain["goodput"]["missed"]["ttft"], 24);
  EXPECT_EQ(plain["levels"].size(), 2u);
  EXPECT_EQ(plain["levels"][0]["offered_rate"], 20);
  EXPECT_EQ(plain["levels"][0]["good_share"], 0.8);
  EXPECT_EQ(plain["knee"]["failed_rate"], 20) << "80 % within the limits are too few";
  EXPECT_EQ(plain["barrier"]["idle_fraction"], 0.25);
  const size_t bins = page["series"]["t_s"].size();
  EXPECT_EQ(page["series"]["ttft_s"]["p99"].size(), bins);
  double tokens = 0;
  for (const auto& rate : page["series"]["tokens_per_s"]) tokens += rate.get<double>() * 0.5;
  EXPECT_NEAR(tokens, static_cast<double>(results_.output_tokens), 1e-6);
  const auto& distribution = page["distributions"];
  EXPECT_EQ(distribution["ttft_s"].size(), distribution["share"].size());
  EXPECT_EQ(distribution["ttft_s"].back(), results_.ttft_s.max());
}

}  // namespace
}  // namespace bfio::loadgen
