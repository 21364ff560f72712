// An engine's rank as a worker: its reports must equal the accounts of the group.
#include "router/engine_link/engine_rank.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Tokens = std::vector<uint32_t>;

// Shorter than `time` by at most one quiet step.
MATCHER_P(IsAlmost, time, "") {
  return arg <= time && arg >= time - EngineRank::kQuietStep;
}

TEST_F(EngineRankTest, PlansBecomeCallsAndTokensSteps) {
  Epoch(1);
  ASSERT_THAT(out_.ready, SizeIs(1));
  EXPECT_THAT(out_.ready[0].active, IsEmpty());
  Plan({7, 8});
  ASSERT_THAT(out_.start, SizeIs(2));
  EXPECT_EQ(out_.start[1].call.id, 8u);
  // The first plan of an epoch is acknowledged immediately: two prompts are pending.
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_EQ(reports[0].applied_plan, 1);
  EXPECT_EQ(reports[0].load_tokens, 20);
  EXPECT_EQ(reports[0].prefill->pending_tokens(), 20);
  EXPECT_FALSE(reports[0].group_idle);

  Token(1, 100);
  EXPECT_EQ(Reports().size(), 1u) << "the other request has not begun: nothing else is sure to come";
  Token(2, 200);
  EXPECT_EQ(Reports().size(), 0u) << "the first one decodes, and has no token in this step";
  Token(1, 101);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(101, 200));
  EXPECT_EQ(reports[0].load_tokens, 10 + 1 + 10);
  EXPECT_THAT(reports[0].prefill->prompts, IsEmpty());
  // Both requests decode now.
  Token(2, 201);
  EXPECT_EQ(Reports().size(), 0u);
  Token(1, 102);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102, 201));
  EXPECT_EQ(reports[0].load_tokens, 10 + 2 + 10 + 1);
}

TEST_F(EngineRankTest, ASecondTokenBeginsAStep) {
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  Reports();
  Token(1, 102);
  Token(1, 103);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102));
}

TEST_F(EngineRankTest, AStepWaitsForItsTokensAShareOfAStep) {
  max_new_tokens_ = 100;
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  for (uint32_t i = 0; i < 60; ++i) {
    now_ += absl::Milliseconds(8);
    rank_.OnTokens(1, {i}, nullptr, now_, out_);
    rank_.OnTokens(2, {i}, nullptr, now_, out_);
  }
  EXPECT_EQ(Reports().size(), 3u + 60);
  now_ += absl::Milliseconds(8);
  Token(1, 102);
  // A quarter of 8 ms, which the mean step time has nearly reached.
  Wait(absl::Microseconds(1'900));
  EXPECT_EQ(Reports().size(), 0u);
  Wait(absl::Microseconds(100));
  EXPECT_EQ(Reports().size(), 1u);
}

TEST_F(EngineRankTest, TheEndBelongsToTheStepOfTheLastToken) {
  Epoch(1);
  Plan({7});
  for (uint32_t i = 0; i < 5; ++i) Token(1, 100 + i);
  EXPECT_EQ(Reports().size(), 5u) << "the fifth token is the last that was asked for";
  rank_.OnFinished(1, {EngineFinish::kLength, nullptr, 0}, now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(104));
  ASSERT_THAT(reports[0].finished, SizeIs(1));
  EXPECT_EQ(reports[0].finished[0].reason, FinishReason::kLength);
  EXPECT_TRUE(reports[0].group_idle);
  EXPECT_EQ(rank_.active(), 0);
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(EngineRankTest, AnEarlierEndIsAStepOfItsOwn) {
  Epoch(1);
  Plan({7});
  Token(1, 100);
  rank_.OnFinished(1, {EngineFinish::kStop, nullptr, 0}, now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_EQ(reports[2].finished[0].reason, FinishReason::kStop);
  EXPECT_EQ(reports[2].load_tokens, 11);
  EXPECT_TRUE(reports[2].group_idle);
}

TEST_F(EngineRankTest, ALongPromptIsReportedWhileNothingComes) {
  Epoch(1);
  Plan({7});
  Reports();
  Wait(EngineRank::kQuietStep);
  Wait(EngineRank::kQuietStep);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(2));
  EXPECT_EQ(reports[1].prefill->pending_tokens(), 10);
  EXPECT_EQ(reports[1].local, EngineRank::kQuietStep);
}

TEST_F(EngineRankTest, ARankWithoutTokensForTooLongIsSilent) {
  Epoch(1);
  Plan({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
  Wait(absl::Minutes(1));
  EXPECT_THAT(Reports(), IsEmpty()) << "the group's step timeout has to see it";
  // Neither new requests nor a new epoch show that the engine works; each is acknowledged once.
  Plan({8});
  Epoch(2);
  Plan({9});
  Reports();
  EXPECT_EQ(ReportedFor(), absl::ZeroDuration());
  // Requests of others that come and go do not show it either; growth of their KV cache does.
  rank_.OnLoad(EngineLoad{5, 100}, now_, out_);
  rank_.OnLoad(EngineLoad{6, 100}, now_, out_);
  EXPECT_EQ(ReportedFor(), absl::ZeroDuration());
  rank_.OnLoad(EngineLoad{6, 101}, now_, out_);
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
}

TEST_F(EngineRankTest, TokensAreASignThatTheRankWorks) {
  max_new_tokens_ = 1;
  Epoch(1);
  Plan({7, 8});
  Wait(EngineRank::kLongestQuiet - EngineRank::kQuietStep);
  Token(1, 100);
  rank_.OnFinished(1, {EngineFinish::kLength, nullptr, 0}, now_, out_);
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
}

TEST_F(EngineRankTest, TheTimeWithoutTokensIsLongerForLongPromptsAndLongStepTimeouts) {
  prompt_tokens_ = 200'000;
  Epoch(1);
  Plan({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(200)));
  prompt_tokens_ = 10;
  step_timeout_ = absl::Seconds(20);
  rank_ = EngineRank();
  Epoch(1);
  Plan({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(120)));
  // The time starts again when an idle rank gets its next request.
  Plan({}, {7});
  Reports();
  Wait(absl::Minutes(10));
  Plan({8});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(120)));
}

// Such an output sends nothing before its end, which may be late.
TEST_F(EngineRankTest, WholeOutputsMayTakeAsLongAsTheirTokens) {
  passed_.on = passed_.whole = true;
  max_new_tokens_ = 500;
  Epoch(1);
  Plan({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(500 * EngineRank::kSlowestStep));
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::ZeroDuration())) << "the group's step timeout has to see it";
  // With steps of 50 ms, the next output gets ten times as long.
  now_ += absl::Seconds(1);
  Plan({}, {7});
  Plan({8});
  now_ += absl::Seconds(1);
  rank_.OnFinished(2, {EngineFinish::kStop, nullptr, 20}, now_, out_);
  Plan({9});
  Reports();
  EXPECT_THAT(ReportedFor(), IsAlmost(250 * EngineRank::kSlowestStep));
}

TEST_F(EngineRankTest, KvUseShowsWhetherAWholeOutputMakesProgress) {
  passed_.on = passed_.whole = true;
  max_new_tokens_ = 500;
  Epoch(1);
  Plan({7});
  // The KV use of a state-space model changes only with its requests.
  rank_.OnLoad(EngineLoad{0, 0}, now_, out_);
  rank_.OnLoad(EngineLoad{1, 100}, now_, out_);
  Plan({8});
  rank_.OnLoad(EngineLoad{1, 200}, now_, out_);
  EXPECT_FALSE(rank_.load_shows_work());
  EXPECT_THAT(ReportedFor(), IsAlmost(500 * EngineRank::kSlowestStep));
  // That of other models grows with their tokens.
  rank_.OnLoad(EngineLoad{1, 201}, now_, out_);
  EXPECT_TRUE(rank_.load_shows_work());
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
  rank_.OnLoad(EngineLoad{1, 202}, now_, out_);
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet)) << "while it grows";
  rank_.OnLoad(std::nullopt, now_, out_);
  EXPECT_GE(ReportedFor(), 500 * EngineRank::kSlowestStep - 2 * EngineRank::kLongestQuiet)
      << "it reports no use any more";
}

TEST_F(EngineRankTest, ARequestBehindALongPromptGetsItsOwnTime) {
  prompt_tokens_ = 200'000;
  Epoch(1);
  Plan({7});
  Wait(absl::Seconds(100));
  prompt_tokens_ = 10;
  Plan({8});
  Wait(absl::Seconds(50));
  Plan({}, {7});
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
  // No longer than that, although requests come and go.
  Plan({9});
  Plan({}, {8});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::ZeroDuration()));
}

TEST_F(EngineRankTest, ARankWhoseDecodesStallIsSilent) {
  Epoch(1);
  Plan({7});
  Token(1, 100);
  Reports();
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
  Wait(absl::Minutes(1));
  EXPECT_EQ(Reports().size(), 0u) << "the group's step timeout has to see it";
}

TEST_F(EngineRankTest, CancelledCallsEndAndAreNotHeardAgain) {
  Epoch(1);
  Plan({7, 8});
  Plan({}, {7});
  EXPECT_THAT(out_.cancel, ElementsAre(1));
  Reports();
  Token(1, 100);
  rank_.OnFinished(1, {EngineFinish::kLength, nullptr, 0}, now_, out_);
  EXPECT_EQ(Reports().size(), 0u);
  // This was the last request, so the report says that the rank is idle.
  Plan({}, {8});
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_TRUE(reports[0].group_idle);
  EXPECT_EQ(reports[0].applied_plan, 3);
}

TEST_F(EngineRankTest, AFailedRequestEndsAndALostCallIsPlacedAgain) {
  Epoch(1);
  Plan({7, 8, 9});
  Token(1, 100);
  Reports();
  rank_.OnFailed(2, absl::InvalidArgumentError("no"), now_, out_);
  rank_.OnFailed(1, absl::UnavailableError("lost"), now_, out_);
  rank_.OnFailed(3, absl::ResourceExhaustedError("full"), now_, out_);
  Wait(EngineRank::kShortestRefusal);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(3));
  ASSERT_THAT(reports[0].rejected, SizeIs(1));
  EXPECT_TRUE(absl::IsInvalidArgument(reports[0].rejected[0].status));
  EXPECT_THAT(reports[1].preempted, ElementsAre(7)) << "after its first token";
  ASSERT_THAT(reports[2].rejected, SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(reports[2].rejected[0].status));
}

TEST_F(EngineRankTest, APlacementThatNoEngineCanCarryOutIsRefused) {
  Epoch(1);
  PlanPart plan;
  plan.epoch = 1;
  plan.apply_step = 1;
  std::vector<EngineRank::Placement> placements;
  placements.push_back({7, absl::UnavailableError("sampled with a seed")});
  rank_.OnPlan(plan, std::move(placements), now_, out_);
  EXPECT_THAT(out_.start, IsEmpty());
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(reports[0].rejected[0].status)) << "it ends: nowhere else is better";
}

TEST_F(EngineRankTest, BetweenEpochsTokensWaitForTheFirstPlan) {
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  Reports();
  Epoch(2, {8});
  EXPECT_THAT(out_.cancel, ElementsAre(2));
  // Tokens received before count in the old epoch.
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].epoch, 1u);
  ASSERT_THAT(out_.ready.back().active, SizeIs(1));
  EXPECT_EQ(out_.ready.back().active[0].generated_tokens, 2u);
  EXPECT_EQ(out_.ready.back().active[0].kv_tokens, 12);
  Token(1, 102);
  Token(1, 103);
  Wait(absl::Seconds(5));
  EXPECT_EQ(Reports().size(), 0u);
  Plan({});
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].epoch, 2u);
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102, 103));
}

// --- slots ---

// An engine of four slots that serves in order, and a router that fills these slots and the additional ones
// that the rank reports. Each sees the other half a step late. Result: the slots that stayed empty and the
// longest queue, over the second half of 200 requests of five tokens.
struct Service {
  int empty = 0, waited = 0;
  int32_t extra = 0;
};

Service ServeFive(bool with_credit) {
  constexpr absl::Duration kStep = absl::Milliseconds(20);
  constexpr int32_t kSlots = 4;
  EngineRank rank({.slots = kSlots});
  rank.OnRoundTrip(kStep);
  EngineRank::Output out;
  absl::Time now = absl::UnixEpoch();
  rank.OnEpoch({.epoch = 1}, now, out);
  Service service;
  std::map<CallNumber, int> made;  // in the order in which the engine starts them
  std::vector<EngineRank::StartCall> sent;
  core::RequestId next = 0;
  int64_t plan = 0;
  int32_t placed = 0;
  const auto place = [&] {
    PlanPart part{.epoch = 1, .apply_step = ++plan};
    std::vector<EngineRank::Placement> placements;
    for (; placed < kSlots + (with_credit ? service.extra : 0); ++placed) {
      EngineCall call;
      call.id = ++next;
      call.prompt = Tokens(3, 1);
      call.max_new_tokens = 5;
      placements.push_back({call.id, call});
    }
    rank.OnPlan(part, std::move(placements), now, out);
  };
  place();
  for (int step = 0; next < 200; ++step) {
    // Requests sent before the end of the step before the last one are there; later ones arrive during this
    // step.
    for (const EngineRank::StartCall& start : sent) made[start.number] = 0;
    sent = std::exchange(out.start, {});
    if (next > 100) {
      service.empty += std::max<int>(0, kSlots - static_cast<int>(made.size()));
      service.waited = std::max(service.waited, static_cast<int>(made.size()) - kSlots);
    }
    now += kStep;
    int running = 0;
    for (auto it = made.begin(); it != made.end() && running < kSlots; ++running) {
      rank.OnTokens(it->first, {7}, nullptr, now, out);
      if (++it->second < 5) {
        ++it;
        continue;
      }
      rank.OnFinished(it->first, {EngineFinish::kLength, nullptr, 0}, now, out);
      it = made.erase(it);
    }
    rank.OnTimer(now + kStep / 2, out);
    for (const StepReport& report : std::exchange(out.reports, {})) {
      placed -= static_cast<int32_t>(report.finished.size());
      service.extra = report.extra_slots;
    }
    place();
  }
  return service;
}

TEST(EngineRankSlotsTest, NoSlotIsEmptyWithCreditForARoundTrip) {
  const Service without = ServeFive(false), with = ServeFive(true);
  EXPECT_GT(without.empty, 10);
  EXPECT_EQ(with.empty, 0);
  // Four slots end 0.8 requests per step: 1.6 during a round trip and a step.
  EXPECT_EQ(with.extra, 3);
  EXPECT_LE(with.waited, 3);
}

TEST_F(EngineRankTest, WhereFewEndNoneWaitInTheEngine) {
  max_new_tokens_ = 1'000;
  rank_ = EngineRank({.slots = 4});
  Epoch(1);
  Plan({1, 2, 3, 4});
  for (uint32_t i = 0; i < 500; ++i) {
    now_ += absl::Milliseconds(20);
    for (CallNumber call = 1; call <= 4; ++call) Token(call, i);
  }
  EXPECT_EQ(Reports().back().extra_slots, 0);
}

// --- requests that pass ---

TEST_F(EngineRankTest, MessagesGoWithTheirTokensAndWithTheEnd) {
  passed_.on = true;
  Epoch(1);
  Plan({7, 8});
  Reports();
  const PassedPtr first = std::make_shared<AMessage>(), empty = std::make_shared<AMessage>(),
                  last = std::make_shared<AMessage>();
  rank_.OnTokens(2, {}, empty, now_, out_);
  rank_.OnTokens(1, {100}, first, now_, out_);
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(2));
  ASSERT_THAT(reports[0].tokens, SizeIs(1));
  EXPECT_EQ(reports[0].tokens[0].count, 0u) << "a message without tokens";
  EXPECT_THAT(reports[0].messages[0].messages, ElementsAre(empty));
  EXPECT_EQ(reports[1].tokens[0].count, 1u);
  EXPECT_THAT(reports[1].messages[0].messages, ElementsAre(first));
  EXPECT_THAT(reports[1].prefill->prompts, SizeIs(1));
  rank_.OnFinished(1, {EngineFinish::kStop, last, 0}, now_, out_);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].messages[0].messages, ElementsAre(last));
  EXPECT_EQ(reports[0].finished[0].id, 7u);
}

TEST_F(EngineRankTest, AnOutputThatComesWholeGetsATokenAStep) {
  max_new_tokens_ = 100;
  Epoch(1);
  Plan({7});
  passed_ = {.on = true, .whole = true};
  Plan({8});
  Reports();
  for (uint32_t i = 0; i < 10; ++i) {
    now_ += absl::Milliseconds(8);
    Token(1, i);
  }
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(10)) << "it does not hold up the others' steps";
  // The first step computed its prompt, and a token counts once it is reported: 8 of its tokens count.
  EXPECT_EQ(reports[9].load_tokens, 10 + 9 + 10 + 8);
  // Of 30 tokens in total, 9 have been counted.
  rank_.OnFinished(2, {EngineFinish::kLength, nullptr, 30}, now_, out_);
  now_ += absl::Milliseconds(8);
  Token(1, 10);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  ASSERT_THAT(reports[0].tokens, SizeIs(2));
  EXPECT_EQ(reports[0].tokens[1].count, 30u - 9);
  EXPECT_EQ(reports[0].finished[0].id, 8u);
}

TEST_F(EngineRankTest, WithoutStreamsAStepIsAsLongAsBefore) {
  max_new_tokens_ = 20;
  passed_ = {.on = true, .whole = true};
  Epoch(1);
  Plan({7});
  Reports();
  Wait(absl::Milliseconds(200));
  EXPECT_THAT(Reports(), IsEmpty()) << "nothing is known of steps";
  rank_.OnFinished(1, {EngineFinish::kStop, nullptr, 10}, now_, out_);
  EXPECT_EQ(Reports()[0].tokens[0].count, 10u);
  Plan({8});
  for (int i = 0; i < 30; ++i) Wait(absl::Milliseconds(20));
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(30));
  EXPECT_EQ(reports[10].load_tokens, 10 + 9);
  EXPECT_EQ(reports.back().load_tokens, 10 + 19) << "the last one comes with the end";
  // Fewer tokens than were estimated.
  rank_.OnFinished(2, {EngineFinish::kStop, nullptr, 3}, now_, out_);
  reports = Reports();
  EXPECT_THAT(reports[0].tokens, IsEmpty());
  ASSERT_THAT(reports[0].finished, SizeIs(1));
  EXPECT_EQ(reports[0].finished[0].generated, 3u);
}

TEST_F(EngineRankTest, APromptWhoseKvComesFromElsewhereIsNoWork) {
  passed_ = {.on = true, .kv_from_elsewhere = true};
  Epoch(1);
  Plan({7});
  const std::vector<StepReport> reports = Reports();
  EXPECT_EQ(reports[0].load_tokens, 10);
  EXPECT_EQ(reports[0].prefill->pending_tokens(), 1);
}

// For any order of events: each token is reported once and in order, steps count from 1, loads are prompts
// plus tokens reported before, and ended requests are never reported again.
TEST_F(EngineRankTest, RandomLivesAreReportedExactly) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    rank_ = EngineRank();
    out_ = {};
    std::map<CallNumber, core::RequestId> running;
    std::map<core::RequestId, Tokens> sent, got;
    std::map<core::RequestId, uint32_t> generated;  // of the current placement, as reported
    core::RequestId next_id = 1;
    Epoch(1);
    size_t started = 0;
    int64_t step = 0;
    uint64_t epoch = 1;
    const auto take = [&] {
      for (; started < out_.start.size(); ++started)
        running[out_.start[started].number] = out_.start[started].call.id;
      for (const StepReport& report : std::exchange(out_.reports, {})) {
        if (report.epoch != epoch) {
          epoch = report.epoch;
          step = 0;
        }
        EXPECT_EQ(report.step, ++step);
        size_t at = 0;
        for (const RequestTokens& tokens : report.tokens) {
          for (uint32_t i = 0; i < tokens.count; ++i) got[tokens.id].push_back(report.token_ids[at++]);
        }
        EXPECT_EQ(at, report.token_ids.size());
        for (const core::PendingPrompt& prompt : report.prefill->prompts)
          EXPECT_FALSE(got.contains(prompt.id));
      }
    };
    for (int i = 0; i < 300; ++i) {
      const double dice = rng.Uniform();
      now_ += absl::Milliseconds(rng.Uniform() * 4);
      auto it = running.begin();
      if (!running.empty())
        std::advance(it, static_cast<int64_t>(rng.Uniform() * static_cast<double>(running.size())));
      if (dice < 0.2) {
        Plan({next_id});
        ++next_id;
      } else if (dice < 0.75 && it != running.end() && sent[it->second].size() < 5) {
        const auto token = static_cast<uint32_t>(1'000 + i);
        sent[it->second].push_back(token);
        Token(it->first, token);
        if (sent[it->second].size() == 5) {
          rank_.OnFinished(it->first, {EngineFinish::kLength, nullptr, 0}, now_, out_);
          running.erase(it);
        }
      } else if (dice < 0.8 && it != running.end()) {
        rank_.OnFinished(it->first, {EngineFinish::kStop, nullptr, 0}, now_, out_);
        running.erase(it);
      } else if (dice < 0.83) {
        take();
        Epoch(epoch_ + 1);
        take();
        Plan({});
      } else {
        rank_.OnTimer(now_, out_);
      }
      take();
    }
    Wait(absl::Seconds(1));
    take();
    std::erase_if(sent, [](const auto& entry) { return entry.second.empty(); });
    EXPECT_EQ(got, sent) << seed;
    EXPECT_EQ(static_cast<size_t>(rank_.active()), running.size());
  }
}

}  // namespace
}  // namespace bfio::router
