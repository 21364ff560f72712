// A rank whose tokens someone else carries: places, counts, ends, and what follows from the engine's counts.
#include "router/engine_link/placed_rank.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/requests/not_tried.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class PlacedRankTest : public RankTest<PlacedRank> {
 protected:
  void Begin(std::vector<core::RequestId> place, const EngineLoad& running = {}, bool on_trial = false) {
    rank_ = PlacedRank({.slots = 8, .kv_tokens = 100'000, .on_trial = on_trial}, running);
    Epoch(1);
    max_new_tokens_ = 1000;
    Plan(std::move(place));
  }
  void End(CallNumber call) { Finish(call, EngineFinish::kStop); }
  // The engine counts so many tokens in a second of two requests.
  StepReport Second(int64_t tokens) {
    now_ += absl::Seconds(1);
    Load(2, 100, generated_ += tokens);
    return Report();
  }
  int64_t generated_ = 0;
};

TEST_F(PlacedRankTest, PlansAndEndsAreReportedAtOnceAndNothingElse) {
  Begin({1, 2});
  StepReport report = Report();
  EXPECT_EQ(report.applied_plan, 1);
  EXPECT_EQ(report.active_requests, 2u);
  EXPECT_THAT(out_.start, SizeIs(2));
  now_ += absl::Seconds(1);
  rank_.OnTimer(now_, out_);
  EXPECT_THAT(Reports(), IsEmpty());
  End(1);
  report = Report();
  ASSERT_THAT(report.finished, SizeIs(1));
  EXPECT_EQ(report.finished[0].generated, 1u) << "at least";
  EXPECT_THAT(report.tokens, IsEmpty());
  Plan({}, {2});
  EXPECT_EQ(Report().active_requests, 0u) << "its client has left";
}

// The engine counts its tokens, so the time of a step is known, and with it how far each request is.
TEST_F(PlacedRankTest, StepsFollowFromWhatTheEngineCounts) {
  Begin({1, 2});
  Reports();
  StepReport report;
  // A step of 50 ms.
  for (int i = 0; i < 10; ++i) report = Second(40);
  EXPECT_NEAR(static_cast<double>(report.step), 200, 1);
  EXPECT_EQ(report.load_tokens, 2 * (10 + report.step)) << "the group counts the same";
  now_ += absl::Milliseconds(500);
  End(1);
  report = Report();
  EXPECT_NEAR(static_cast<double>(report.finished[0].generated.value_or(0)), 210, 2);
  EXPECT_EQ(report.step, *report.finished[0].generated) << "between two loads, too";
  Plan({3});
  EXPECT_EQ(Report().step, report.step) << "none has ended";
  // An epoch counts steps from 0, and the requests continue.
  Epoch(2);
  ASSERT_THAT(out_.ready[1].active, SizeIs(2));
  EXPECT_EQ(out_.ready[1].active[0].generated_tokens, 0u) << "none has been received here";
  Reports();
  Plan({});
  report = Report();
  EXPECT_EQ(report.step, 0);
  EXPECT_NEAR(static_cast<double>(report.load_tokens), 2 * 10 + 210, 2);
  max_new_tokens_ = 1;
  Plan({4});
  Reports();
  for (int i = 0; i < 3; ++i) Second(40);
  End(4);
  EXPECT_EQ(Report().finished[0].generated, 1u) << "at most its bound";
}

// A rank whose engine reports its steps, each of which generates a token for two requests.
class MeteredRankTest : public PlacedRankTest {
 protected:
  // So many steps of 50 ms, and then a load in which the engine has counted `tokens` for each.
  void Steps(int steps, int64_t tokens = 2, int64_t first = 1) {
    for (int i = 0; i < steps; ++i) {
      now_ += (i == 0 ? first : 1) * absl::Milliseconds(50);
      number_ += i == 0 ? first : 1;
      rank_.OnStep({.step = number_, .decodes = 2, .decode_tokens = 2, .decode_context = 30, .took = took_},
                   now_, out_);
    }
    Load(2, 100, generated_ += (steps + first - 1) * tokens);
  }
  int64_t number_ = 100;
  absl::Duration took_ = absl::Milliseconds(50);
};

TEST_F(MeteredRankTest, ReportedStepsCountOnceTheyAgreeWithTheTokens) {
  Begin({1, 2}, {0, 0, 0});
  Load(2, 100, generated_);
  Steps(100);
  EXPECT_EQ(Last().step, 100) << "by the count";
  const auto after = [&](int steps, int64_t first = 1) {
    const int64_t before = Last().step;
    Steps(steps, 2, first);
    return Reports().back().step - before;
  };
  Load(2, 100, generated_);
  EXPECT_EQ(after(7), 7);
  Load(2, 100, generated_);
  EXPECT_EQ(after(1, 5), 5) << "four messages are missing";
  // No count and no clock is asked between them.
  Load(2, 100, generated_);
  const int64_t before = Last().step;
  now_ += absl::Milliseconds(1900);
  Plan({3});
  EXPECT_EQ(Report().step, before);
  now_ += absl::Seconds(1);
  Plan({4});
  EXPECT_NEAR(static_cast<double>(Report().step - before), 20, 2) << "silent: predicted again";
}

TEST_F(MeteredRankTest, WhatDisagreesIsNotUsedAndSaidOnce) {
  EngineBarrier barrier;
  const auto begin = [&] {
    rank_ = PlacedRank({.slots = 8, .kv_tokens = 100'000, .barrier = &barrier});
    Load(2, 100, generated_);
  };
  for (const int64_t tokens : {0, 1, 3, 8}) {
    begin();
    Steps(100, tokens);
    EXPECT_EQ(out_.warning,
              "its step metrics are not used while they disagree with its count of generated tokens");
    out_.warning.clear();
    Steps(100, tokens);
    EXPECT_EQ(out_.warning, "");
    EXPECT_EQ(barrier.cost.version(), 0) << "nor for what steps cost";
  }
  begin();
  Steps(100);
  Steps(40);
  EXPECT_EQ(barrier.cost.version(), 1) << "it agrees";
  begin();
  rank_.OnStep({.step = 1, .decodes = kMostEngineSlots, .took = took_}, now_, out_);
  Steps(100, 0);
  EXPECT_NE(out_.warning, "") << "one that cannot be hides no others";
  out_.warning.clear();
  begin();
  took_ = absl::Milliseconds(100);
  Steps(100);
  EXPECT_NE(out_.warning, "") << "they take longer than the time that has passed";
}

// After a restart of the router, requests that the earlier one has placed run on.
TEST_F(PlacedRankTest, APlanGetsNoMoreThanTheSlotsThatTheEngineHasLeft) {
  Begin({1, 2, 3, 4}, {6, 600, 0});
  StepReport report = Report();
  EXPECT_EQ(rank_.active(), 2);
  ASSERT_THAT(report.rejected, SizeIs(2));
  EXPECT_TRUE(WasNotTried(report.rejected[0].status));
  EXPECT_EQ(report.extra_slots, -6);
  Plan({5});
  EXPECT_EQ(rank_.active(), 2);
  Reports();
  now_ += absl::Seconds(1);
  Load(4, 600);
  EXPECT_EQ(Report().extra_slots, -6) << "it may be older than the requests placed last";
  Load(4, 600);
  EXPECT_EQ(Report().extra_slots, -2) << "four of the six have ended";
  Plan({6});
  EXPECT_EQ(rank_.active(), 3);
  Begin({1}, {8, 600, 0});
  EXPECT_EQ(rank_.active(), 0);
}

// vllm-ascend #13964: a rank stops, and its server stays healthy.
TEST_F(PlacedRankTest, ARankThatStopsIsSilentAndGetsNothingBeforeItWorksAgain) {
  Begin({1, 2});
  Reports();
  for (int i = 0; i < 10; ++i) Second(40);
  int seconds = 0;
  for (; seconds < 1000 && out_.reports.size() == static_cast<size_t>(seconds); ++seconds) {
    now_ += absl::Seconds(1);
    Load(2, 100, generated_);
  }
  EXPECT_EQ(seconds, absl::ToInt64Seconds(EngineRank::kLongestQuiet));
  Reports();
  Plan({}, {1});
  EXPECT_THAT(Reports(), IsEmpty()) << "a client that gives up is no sign of work";
  // The group has cut it off, and it comes back on trial, with what the engine still has.
  Begin({3}, {2, 100, generated_}, /*on_trial=*/true);
  EXPECT_EQ(rank_.active(), 0);
  EXPECT_EQ(Report().extra_slots, -8);
  EXPECT_EQ(Second(1).extra_slots, -2);
  EXPECT_FALSE(rank_.on_trial());
  Begin({3, 4}, {}, /*on_trial=*/true);
  EXPECT_EQ(rank_.active(), 1) << "it has been restarted";
}

// Their requests end, too, and free memory; the time between them is no time of silence.
TEST_F(PlacedRankTest, ClientsThatGiveUpDoNotHideARankThatStops) {
  Begin({}, {0, 0, 7});
  int64_t silent_s = 0, tokens = 0;
  for (CallNumber call = 1; call <= 20; ++call) {
    Plan({call});
    for (int s = 0; s < 15; ++s, ++silent_s) {
      now_ += absl::Seconds(1);
      Reports();
      Load(1, s == 0 ? ++tokens : tokens, 7);
      if (!Reports().empty()) continue;
      EXPECT_EQ(silent_s + 1, absl::ToInt64Seconds(EngineRank::kLongestQuiet));
      End(call);
      EXPECT_THAT(Reports(), IsEmpty());
      Load(0, tokens, 8);
      EXPECT_THAT(Report().finished, SizeIs(1)) << "it works again";
      return;
    }
    End(call);
    Load(0, --tokens, 7);
    now_ += absl::Seconds(100);
    Load(0, tokens, 7);
  }
  ADD_FAILURE() << "not found";
}

TEST_F(PlacedRankTest, WhatItsCacheHasLostIsReportedOnce) {
  rank_ = PlacedRank({.slots = 8, .kv_tokens = 100'000});
  for (int i = 0; i < 2; ++i) rank_.OnLoad(EngineLoad{.cache_lost_ppm = 300'000}, now_, out_);
  EXPECT_THAT(Reports(), IsEmpty()) << "no epoch yet";
  Epoch(1);
  Plan({1});
  EXPECT_EQ(Report().cache_lost_ppm, 600'000);
  Load(1, 100);
  EXPECT_EQ(Report().cache_lost_ppm, 0);
}

TEST_F(PlacedRankTest, ARefusedRequestKeepsItsSlotForAWhile) {
  Begin({1});
  Reports();
  rank_.OnFailed(1, absl::UnavailableError("no connection"), now_, out_);
  EXPECT_THAT(Reports(), IsEmpty());
  EXPECT_EQ(rank_.next_deadline(), now_ + EngineRank::kShortestRefusal);
  now_ += EngineRank::kShortestRefusal;
  rank_.OnTimer(now_, out_);
  EXPECT_THAT(Report().rejected, SizeIs(1));
}

// Was a division by zero.
TEST(RankLoadTest, RequestsOfOthersThatTheEngineNoLongerReportsHaveNoTokens) {
  ReportedLoad load(16, 1000, EngineLoad{.requests = 4, .tokens = 400});
  EXPECT_EQ(load.others_tokens(), 400);
  load.Take(EngineLoad{.requests = 0}, {}, absl::UnixEpoch());
  EXPECT_EQ(load.others(), 4) << "until the second report";
  EXPECT_EQ(load.others_tokens(), 0);
}

}  // namespace
}  // namespace bfio::router
