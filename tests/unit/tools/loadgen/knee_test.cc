#include "tools/loadgen/knee.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/loadgen/results.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;

// Results of a cluster that serves `capacity` requests a second, one after the other, with a further latency
// of 0.1 s each; requests that arrive faster wait. Arrivals are deterministic.
Results Served(const std::vector<double>& rates, double capacity, double ttft_limit_s, double length_s = 20) {
  Results r;
  r.goodput = Goodput({.ttft_s = ttft_limit_s});
  r.levels = Levels(StepLevels(rates, length_s));
  double start = 0;
  for (uint32_t level = 0; level < rates.size(); ++level) {
    r.levels.Begin(level, start);
    double free = start;
    const int count = static_cast<int>(rates[level] * length_s);
    for (int i = 0; i < count; ++i) {
      const double due = start + i / rates[level];
      const double served = std::max(due, free);
      free = served + 1 / capacity;
      r.Sent(due, level, 0);
      // Outputs of 2, 4, .. 20 tokens, 10 ms each.
      const uint32_t tokens = 2 + 2 * (static_cast<uint32_t>(i) % 10);
      r.Add({.code = "OK",
             .output_tokens = tokens,
             .ttft_s = served + 0.1 - due,
             .e2e_s = served + 0.1 - due + 0.01 * (tokens - 1),
             .gaps = {{.gap_s = 0.01 * (tokens - 1), .tokens = tokens - 1}},
             .due_s = due,
             .level = level});
    }
    start += length_s + 100;  // time to drain
  }
  return r;
}

TEST(KneeTest, TheServedShareOfAnOverloadIsCapacityOverRate) {
  const Results r = Served({5, 10, 20, 40}, 10, 1e9);
  const KneeCriteria none;
  EXPECT_NEAR(*Judge(r.levels.levels()[0], none).served_share, 1, 1e-9);
  EXPECT_NEAR(*Judge(r.levels.levels()[1], none).served_share, 1, 1e-9);
  EXPECT_NEAR(*Judge(r.levels.levels()[2], none).served_share, 0.5, 0.01);
  EXPECT_NEAR(*Judge(r.levels.levels()[3], none).served_share, 0.25, 0.01);
  EXPECT_EQ(Judge(r.levels.levels()[2], none).kind, Verdict::kFellBehind);
  EXPECT_FALSE(Judge(r.levels.levels()[2], none).good_share.has_value()) << "no limits, no share";
}

TEST(KneeTest, LongerRequestsInTheSecondHalfAreNotAnOverload) {
  Results r;
  r.levels = Levels(StepLevels({10}, 10));
  r.levels.Begin(0, 0);
  for (int i = 0; i < 100; ++i) {
    const uint32_t tokens = i < 50 ? 11 : 501;
    r.Sent(i * 0.1, 0, 0);
    r.Add({.code = "OK",
           .output_tokens = tokens,
           .ttft_s = 0.1,
           .e2e_s = 0.1 + 0.01 * (tokens - 1),
           .due_s = i * 0.1});
  }
  EXPECT_NEAR(*Judge(r.levels.levels()[0], {}).served_share, 1, 1e-9);
}

TEST(KneeTest, SlowerTokensAreAnOverloadToo) {
  Results r;
  r.levels = Levels(StepLevels({10}, 10));
  r.levels.Begin(0, 0);
  for (int i = 0; i < 100; ++i) {
    const double due = i * 0.1;
    r.Add({.code = "OK", .output_tokens = 101, .ttft_s = 0.1, .e2e_s = 0.1 + 1 + due, .due_s = due});
  }
  EXPECT_NEAR(*Judge(r.levels.levels()[0], {}).served_share, 0.5, 0.01) << "a second longer every second";
}

TEST(KneeTest, WithLimitsTheKneeIsWhereRequestsMissThem) {
  const std::vector<double> rates = {2, 4, 8, 12, 16, 20};
  const auto by_throughput = FindKnee(Served(rates, 10, 1e9).levels.levels(), {});
  ASSERT_TRUE(by_throughput.has_value());
  EXPECT_EQ(by_throughput->held, 8);
  EXPECT_EQ(by_throughput->failed, 12);
  EXPECT_EQ(by_throughput->reason.kind, Verdict::kFellBehind);
  EXPECT_THAT(KneeText(*by_throughput, {}),
              HasSubstr("8 requests/s held; 12 not held: throughput fell behind"));

  const KneeCriteria criteria = {.attainment = 0.9};
  const Results strict = Served(rates, 10, 0.15);
  const auto by_goodput = FindKnee(strict.levels.levels(), criteria);
  ASSERT_TRUE(by_goodput.has_value());
  EXPECT_EQ(by_goodput->held, 8);
  EXPECT_EQ(by_goodput->reason.kind, Verdict::kMissedGoodput);
  EXPECT_THAT(KneeText(*by_goodput, criteria), HasSubstr("at least 90.0 % required"));

  const auto none = FindKnee(Served(rates, 10, 0.05).levels.levels(), criteria);
  ASSERT_TRUE(none.has_value());
  EXPECT_FALSE(none->held.has_value()) << "TTFT is 0.1 s at best";
  EXPECT_EQ(none->failed, 2);
  EXPECT_THAT(KneeText(*none, criteria), HasSubstr("no rate held; 2 not held"));
}

// A level of 100 requests of which `good` are within the limits.
Level Made(double rate, uint64_t good) {
  Level level = {.plan = {.length_s = 10, .from = rate, .to = rate}, .start_s = 0};
  level.sent = level.completed = 100;
  level.good = good;
  return level;
}

TEST(KneeTest, OneBadRateBetweenGoodOnesIsIgnored) {
  const KneeCriteria criteria = {.attainment = 0.9};
  const std::vector<Level> one = {Made(1, 100), Made(2, 50), Made(3, 95), Made(4, 80)};
  EXPECT_EQ(FindKnee(one, criteria)->held, 3);
  EXPECT_EQ(FindKnee(one, criteria)->failed, 4);
  const std::vector<Level> two = {Made(1, 100), Made(2, 50), Made(3, 50), Made(4, 100)};
  EXPECT_EQ(FindKnee(two, criteria)->held, 1) << "beyond two in a row nothing counts";
  EXPECT_EQ(FindKnee(two, criteria)->failed, 2);
  EXPECT_FALSE(TwoFailed(two, 1, criteria));
  EXPECT_TRUE(TwoFailed(two, 2, criteria));
  EXPECT_FALSE(TwoFailed(two, 3, criteria));
  const std::vector<Level> all = {Made(1, 100), Made(2, 90)};
  EXPECT_EQ(FindKnee(all, criteria)->held, 2);
  EXPECT_FALSE(FindKnee(all, criteria)->failed.has_value());
  EXPECT_THAT(KneeText(*FindKnee(all, criteria), criteria), HasSubstr("test higher rates"));
}

TEST(KneeTest, DecreasingRatesHaveNoKnee) {
  EXPECT_FALSE(FindKnee({Made(1, 100), Made(3, 100), Made(2, 100)}, {}).has_value());
}

TEST(KneeTest, AnInterruptedRateIsNotJudged) {
  Level cut = Made(1, 0);
  cut.sent = cut.completed + cut.failed + 1;
  EXPECT_EQ(Judge(cut, {}).kind, Verdict::kNotJudged);
}

TEST(KneeTest, FewRequestsAreNotJudgedAndLostOnesCountAsUnserved) {
  Level few = Made(1, 0);
  few.sent = few.completed = kFewestRequests - 1;
  EXPECT_EQ(Judge(few, {}).kind, Verdict::kNotJudged);
  EXPECT_FALSE(FindKnee({few}, {}).has_value());
  Level lost = Made(1, 0);
  lost.completed = 85;
  lost.failed = 5;
  lost.sent = 90;
  lost.not_sent = 10;
  EXPECT_NEAR(*Judge(lost, {}).served_share, 0.85, 1e-12);
  EXPECT_EQ(Judge(lost, {}).kind, Verdict::kFellBehind);
}

TEST(LevelsTest, RequestsCountWhenDueAndTokensWhenTheyArrive) {
  Levels levels(StepLevels({1, 1, 1}, 10));
  levels.Begin(0, 0);
  levels.Begin(1, 10);
  // Due in the first level. 2 tokens arrive in its second half, 3 in the second level's first half, 4 in its
  // second half.
  levels.OnEnded({.code = "OK",
                  .output_tokens = 9,
                  .ttft_s = 4,
                  .e2e_s = 14,
                  .gaps = {{0, 1}, {4, 3}, {5, 4}},
                  .due_s = 3},
                 true);
  EXPECT_EQ(levels.levels()[0].completed, 1u);
  EXPECT_EQ(levels.levels()[0].good, 1u);
  EXPECT_EQ(levels.levels()[1].completed, 0u);
  EXPECT_EQ(levels.levels()[0].tokens_in_second_half, 2u);
  EXPECT_EQ(levels.levels()[1].tokens_in_second_half, 4u);
  EXPECT_EQ(levels.levels()[1].tokens_per_s(), 0.8);
  levels.OnEnded({.code = "OK", .output_tokens = 1, .due_s = 25, .level = 2}, true);
  EXPECT_EQ(levels.levels()[2].completed, 0u) << "it has not begun";
}

}  // namespace
}  // namespace bfio::loadgen
