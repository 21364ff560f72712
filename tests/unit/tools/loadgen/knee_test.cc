#include "tools/loadgen/knee.h"

#include <algorithm>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/loadgen/results.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;

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
  r.NotSent(0);
  r.NotSent(0);
  EXPECT_EQ(r.good_share(), 0.25);
  r.Add({.code = "CANCELLED", .interrupted = true});
  EXPECT_EQ(r.good_share(), 0.25);
  r.duration_s = 2;
  EXPECT_EQ(r.good_per_s(), 0.5);
}

// Results of a cluster that serves 10 requests a second, one after the other, with a further latency of 0.1 s
// each; requests that arrive faster wait. Arrivals are deterministic.
std::vector<Level> Served(const std::vector<double>& rates, double ttft_limit_s) {
  constexpr double kCapacity = 10, kLength = 20;
  Results r;
  r.goodput = Goodput({.ttft_s = ttft_limit_s});
  r.levels = Levels(rates, kLength);
  for (uint32_t level = 0; level < rates.size(); ++level) {
    const double start = level * (kLength + 100);  // time to drain
    r.levels.Begin(level, start);
    double free = start;
    for (int i = 0; i < static_cast<int>(rates[level] * kLength); ++i) {
      const double due = start + i / rates[level];
      const double served = std::max(due, free);
      free = served + 1 / kCapacity;
      r.Sent(due, level, 0);
      // Outputs of 2, 4, .. 20 tokens, 10 ms each.
      const uint32_t tokens = 2 + 2 * (static_cast<uint32_t>(i) % 10);
      r.Add({.code = "OK",
             .output_tokens = tokens,
             .ttft_s = served + 0.1 - due,
             .e2e_s = served + 0.1 - due + 0.01 * (tokens - 1),
             .due_s = due,
             .level = level});
    }
  }
  return r.levels.levels();
}

TEST(KneeTest, TheServedShareOfAnOverloadIsCapacityOverRate) {
  const std::vector<Level> levels = Served({5, 10, 20, 40}, 1e9);
  const double shares[] = {1, 1, 0.5, 0.25};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(*Judge(levels[i], false).served_share, shares[i], 0.01) << i;
  EXPECT_EQ(Judge(levels[2], false).kind, Verdict::kFellBehind);
  EXPECT_FALSE(Judge(levels[2], false).good_share.has_value()) << "no limits, no share";
}

// Served share of 100 requests, one every 0.1 s, whose tokens and decode times are those of the function.
double ServedShare(const std::function<std::pair<uint32_t, double>(int)>& request) {
  Levels levels({10}, 10);
  levels.Begin(0, 0);
  for (int i = 0; i < 100; ++i) {
    const auto [tokens, decode_s] = request(i);
    levels.OnEnded(
        {.code = "OK", .output_tokens = tokens, .ttft_s = 0.1, .e2e_s = 0.1 + decode_s, .due_s = i * 0.1},
        true);
  }
  return *Judge(levels.levels()[0], false).served_share;
}

TEST(KneeTest, SlowerTokensAreAnOverloadAndLongerRequestsAreNot) {
  EXPECT_NEAR(ServedShare([](int i) { return std::pair(101u, 1 + i * 0.1); }), 0.5, 0.01)
      << "a second longer every second";
  EXPECT_NEAR(ServedShare([](int i) {
                const uint32_t tokens = i < 50 ? 11 : 501;
                return std::pair(tokens, 0.01 * (tokens - 1));
              }),
              1, 1e-9);
}

TEST(KneeTest, WithLimitsTheKneeIsWhereRequestsMissThem) {
  const std::vector<double> rates = {2, 4, 8, 12, 16, 20};
  const auto by_throughput = FindKnee(Served(rates, 1e9), false);
  ASSERT_TRUE(by_throughput.has_value());
  EXPECT_EQ(by_throughput->held, 8);
  EXPECT_EQ(by_throughput->failed, 12);
  EXPECT_EQ(by_throughput->reason.kind, Verdict::kFellBehind);
  EXPECT_THAT(KneeText(*by_throughput), HasSubstr("8 requests/s held; 12 not held: throughput fell behind"));

  const auto by_goodput = FindKnee(Served(rates, 0.15), true);
  ASSERT_TRUE(by_goodput.has_value());
  EXPECT_EQ(by_goodput->held, 8);
  EXPECT_EQ(by_goodput->reason.kind, Verdict::kMissedGoodput);
  EXPECT_THAT(KneeText(*by_goodput), HasSubstr("at least 90.0 % required"));

  const auto none = FindKnee(Served(rates, 0.05), true);
  ASSERT_TRUE(none.has_value());
  EXPECT_FALSE(none->held.has_value()) << "TTFT is 0.1 s at best";
  EXPECT_EQ(none->failed, 2);
  EXPECT_THAT(KneeText(*none), HasSubstr("no rate held; 2 not held"));
}

// A level of 100 requests of which `good` are within the limits.
Level Made(double rate, uint64_t good) {
  Level level = {.rate = rate, .length_s = 10, .start_s = 0};
  level.sent = level.completed = 100;
  level.good = good;
  return level;
}

TEST(KneeTest, OneBadRateBetweenGoodOnesIsIgnored) {
  const std::vector<Level> one = {Made(1, 100), Made(2, 50), Made(3, 95), Made(4, 80)};
  EXPECT_EQ(FindKnee(one, true)->held, 3);
  EXPECT_EQ(FindKnee(one, true)->failed, 4);
  const std::vector<Level> two = {Made(1, 100), Made(2, 50), Made(3, 50), Made(4, 100)};
  EXPECT_EQ(FindKnee(two, true)->held, 1) << "beyond two in a row nothing counts";
  EXPECT_EQ(FindKnee(two, true)->failed, 2);
  EXPECT_FALSE(TwoFailed(two, 1, true));
  EXPECT_TRUE(TwoFailed(two, 2, true));
  EXPECT_FALSE(TwoFailed(two, 3, true));
  const auto all = FindKnee({Made(1, 100), Made(2, 90)}, true);
  EXPECT_EQ(all->held, 2);
  EXPECT_FALSE(all->failed.has_value());
  EXPECT_THAT(KneeText(*all), HasSubstr("test higher rates"));
}

TEST(KneeTest, FewOrInterruptedRequestsAreNotJudgedAndLostOnesCountAsUnserved) {
  Level cut = Made(1, 0);
  cut.sent = cut.completed + 1;
  EXPECT_EQ(Judge(cut, false).kind, Verdict::kNotJudged);
  Level few = Made(1, 0);
  few.sent = few.completed = kFewestRequests - 1;
  EXPECT_EQ(Judge(few, false).kind, Verdict::kNotJudged);
  EXPECT_FALSE(FindKnee({few}, false).has_value());
  Level lost = Made(1, 0);
  lost.completed = 85;
  lost.failed = 5;
  lost.sent = 90;
  lost.not_sent = 10;
  EXPECT_NEAR(*Judge(lost, false).served_share, 0.85, 1e-12);
  EXPECT_EQ(Judge(lost, false).kind, Verdict::kFellBehind);
}

}  // namespace
}  // namespace bfio::loadgen
