// An engine's rank as a worker: its reports must equal the accounts of the group.
#include "router/engine_link/engine_rank.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Tokens = std::vector<uint32_t>;
using ::testing::UnorderedElementsAre;

// --- steps ---

TEST_F(EngineRankTest, AStepHasATokenOfEachRequestThatDecodes) {
  Epoch(1);
  ASSERT_THAT(out_.ready, SizeIs(1));
  EXPECT_THAT(out_.ready[0].active, IsEmpty());
  Plan({7, 8});
  ASSERT_THAT(out_.start, SizeIs(2));
  EXPECT_EQ(out_.start[1].call.id, 8u);
  EXPECT_EQ(Report().applied_plan, 1) << "the first plan of an epoch is acknowledged immediately";
  Token(1, 100);
  EXPECT_THAT(Report().token_ids, ElementsAre(100))
      << "the other has not begun: nothing else is sure to come";
  Token(2, 200);
  EXPECT_THAT(Reports(), IsEmpty()) << "the first one decodes, and has no token in this step";
  Token(1, 101);
  EXPECT_THAT(Report().token_ids, ElementsAre(101, 200));
  Token(2, 201);
  EXPECT_THAT(Reports(), IsEmpty());
  Token(1, 102);
  EXPECT_THAT(Report().token_ids, ElementsAre(102, 201));
  Token(1, 103);
  Token(1, 104);
  EXPECT_THAT(Report().token_ids, ElementsAre(103)) << "a second token begins a step";
}

TEST_F(EngineRankTest, AStepWaitsForItsTokensAShareOfAStep) {
  max_new_tokens_ = 100;
  Begin({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  Reports();
  for (uint32_t i = 0; i < 60; ++i) {
    now_ += absl::Milliseconds(8);
    for (const CallNumber call : {1, 2}) Token(call, i);
  }
  EXPECT_THAT(Reports(), SizeIs(60));
  now_ += absl::Milliseconds(8);
  Token(1, 102);
  // A quarter of 8 ms, which the mean step time has nearly reached.
  Wait(absl::Microseconds(1'900));
  EXPECT_THAT(Reports(), IsEmpty());
  Wait(absl::Microseconds(100));
  EXPECT_THAT(Reports(), SizeIs(1));
}

TEST_F(EngineRankTest, TheEndBelongsToTheStepOfTheLastToken) {
  Begin({7});
  for (uint32_t i = 0; i < 5; ++i) Token(1, 100 + i);
  EXPECT_THAT(Reports(), SizeIs(4)) << "the fifth token is the last that was asked for";
  Finish(1);
  const StepReport report = Report();
  EXPECT_THAT(report.token_ids, ElementsAre(104));
  EXPECT_THAT(report.finished, ElementsAre(FieldsAre(7, FinishReason::kLength, std::nullopt)));
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
  Begin({7});
  Token(1, 100);
  Finish(1, EngineFinish::kStop);
  EXPECT_THAT(Reports(), SizeIs(2)) << "an earlier end is a step of its own";
}

TEST_F(EngineRankTest, AFailedRequestEndsAndALostCallIsPlacedAgain) {
  Begin({7, 8, 9});
  Token(1, 100);
  Reports();
  Fail(2, absl::InvalidArgumentError("no"));
  EXPECT_THAT(Report().rejected, ElementsAre(FieldsAre(8, absl::InvalidArgumentError("no"))));
  Fail(1, absl::UnavailableError("lost"));
  EXPECT_THAT(Report().preempted, ElementsAre(7)) << "after its first token";
  Fail(3, absl::ResourceExhaustedError("full"));
  Wait(EngineRank::kShortestRefusal);
  EXPECT_THAT(Report().rejected, ElementsAre(FieldsAre(9, absl::ResourceExhaustedError("full"))));
}

TEST_F(EngineRankTest, APlacementThatNoEngineCanCarryOutIsRefused) {
  Epoch(1);
  const absl::Status seeded = absl::UnavailableError("sampled with a seed");
  rank_.OnPlan({.epoch = 1, .apply_step = 1}, {{7, seeded}}, now_, out_);
  EXPECT_THAT(out_.start, IsEmpty());
  EXPECT_THAT(Report().rejected, ElementsAre(FieldsAre(7, seeded))) << "it ends: nowhere else is better";
}

// For any order of events: each token is reported once and in order, steps count from 1, loads are prompts
// plus tokens reported before, and requests that have ended or are cancelled are never reported again.
TEST_F(EngineRankTest, RandomLivesAreReportedExactly) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    rank_ = StreamedRank();
    out_ = {};
    std::map<CallNumber, core::RequestId> running;
    std::vector<CallNumber> cancelled;
    std::map<core::RequestId, Tokens> sent, got;
    std::map<core::RequestId, int64_t> active;  // tokens reported
    core::RequestId next_id = 1;
    Epoch(1);
    size_t started = 0;
    int64_t step = 0;
    uint64_t epoch = 1;
    const auto take = [&] {
      for (; started < out_.start.size(); ++started) {
        running[out_.start[started].number] = out_.start[started].call.id;
        active[out_.start[started].call.id] = 0;
      }
      for (const StepReport& report : Reports()) {
        if (std::exchange(epoch, report.epoch) != report.epoch) step = 0;
        EXPECT_EQ(report.step, ++step);
        int64_t load = 0;
        for (const auto& [id, tokens] : active) load += 10 + tokens;
        EXPECT_EQ(report.load_tokens, load);
        EXPECT_EQ(report.active_requests, active.size());
        size_t at = 0;
        for (const RequestTokens& tokens : report.tokens) {
          ASSERT_TRUE(active.contains(tokens.id));
          active[tokens.id] += tokens.count;
          for (uint32_t i = 0; i < tokens.count; ++i) got[tokens.id].push_back(report.token_ids[at++]);
        }
        EXPECT_EQ(at, report.token_ids.size());
        for (const FinishedRequest& finished : report.finished) EXPECT_EQ(active.erase(finished.id), 1u);
        EXPECT_EQ(report.group_idle, active.empty());
        EXPECT_EQ(
            std::ssize(report.prefill->prompts),
            std::count_if(active.begin(), active.end(), [](const auto& one) { return one.second == 0; }));
        for (const core::PendingPrompt& prompt : report.prefill->prompts) EXPECT_EQ(active.at(prompt.id), 0);
      }
    };
    for (int i = 0; i < 300; ++i) {
      const double dice = rng.Uniform();
      now_ += absl::Milliseconds(rng.Uniform() * 4);
      auto it = running.begin();
      if (!running.empty()) std::advance(it, static_cast<int64_t>(rng.Below(running.size())));
      if (dice < 0.2) {
        Plan({next_id++});
      } else if (dice < 0.75 && it != running.end() && sent[it->second].size() < 5) {
        const auto token = static_cast<uint32_t>(1'000 + i);
        sent[it->second].push_back(token);
        Token(it->first, token);
        if (sent[it->second].size() == 5) {
          Finish(it->first);
          running.erase(it);
        }
      } else if (dice < 0.8 && it != running.end()) {
        Finish(it->first, EngineFinish::kStop);
        running.erase(it);
      } else if (dice < 0.82 && it != running.end()) {
        sent[it->second] = got[it->second];
        active.erase(it->second);
        cancelled.push_back(it->first);
        Plan({}, {it->second});
        running.erase(it);
      } else if (dice < 0.85) {
        // Tokens received before count in the old epoch, and others wait for the first plan of the new one.
        take();
        std::vector<core::RequestId> drop;
        if (it != running.end()) {
          sent[it->second] = got[it->second];
          drop.push_back(it->second);
          cancelled.push_back(it->first);
        }
        Epoch(epoch_ + 1, drop);
        take();
        if (!drop.empty()) {
          sent[drop[0]] = got[drop[0]];
          active.erase(drop[0]);
          running.erase(it);
        }
        ASSERT_EQ(out_.ready.back().active.size(), active.size());
        for (const HeldActive& held : out_.ready.back().active) {
          EXPECT_EQ(held.generated_tokens, active.at(held.id));
          EXPECT_EQ(held.kv_tokens, 10 + active.at(held.id));
        }
        if (!running.empty() && sent[running.begin()->second].size() < 4) {
          sent[running.begin()->second].push_back(9);
          Token(running.begin()->first, 9);
          EXPECT_THAT(out_.reports, IsEmpty());
        }
        Plan({});
      } else if (dice < 0.87 && !cancelled.empty()) {
        Token(cancelled.back(), 1);
        Finish(cancelled.back());
      } else {
        rank_.OnTimer(now_, out_);
      }
      take();
    }
    Wait(absl::Seconds(1));
    take();
    for (auto* tokens : {&sent, &got})
      std::erase_if(*tokens, [](const auto& one) { return one.second.empty(); });
    EXPECT_EQ(got, sent);
    EXPECT_EQ(static_cast<size_t>(rank_.active()), running.size());
    EXPECT_EQ(out_.cancel, cancelled);
  }
}

// --- slots ---

// An engine of four slots that serves in order, and a router that fills these slots and the additional ones
// that the rank reports. Each sees the other half a step late. Result: the slots that stayed empty and the
// longest queue, over the second half of 200 requests of five tokens.
struct Service {
  int empty = 0, waited = 0;
  int32_t extra = 0;
};

class SlotsTest : public EngineRankTest {
 protected:
  Service ServeFive(bool with_credit) {
    constexpr absl::Duration kStep = absl::Milliseconds(20);
    constexpr int32_t kSlots = 4;
    rank_ = StreamedRank({.slots = kSlots});
    out_ = {};
    rank_.OnRoundTrip(kStep);
    Epoch(1);
    Service service;
    std::map<CallNumber, int> made;  // in the order in which the engine starts them
    std::vector<EngineRank::StartCall> sent;
    core::RequestId next = 0;
    int32_t placed = 0;
    const auto place = [&] {
      std::vector<core::RequestId> ids;
      for (; placed < kSlots + (with_credit ? service.extra : 0); ++placed) ids.push_back(++next);
      Plan(ids);
    };
    place();
    while (next < 200) {
      // Requests sent before the end of the last step but one are there; later ones arrive in this step.
      for (const EngineRank::StartCall& start : sent) made[start.number] = 0;
      sent = std::exchange(out_.start, {});
      if (next > 100) {
        service.empty += std::max<int>(0, kSlots - static_cast<int>(made.size()));
        service.waited = std::max(service.waited, static_cast<int>(made.size()) - kSlots);
      }
      now_ += kStep;
      int running = 0;
      for (auto it = made.begin(); it != made.end() && running < kSlots; ++running) {
        Token(it->first, 7);
        if (++it->second < 5) {
          ++it;
          continue;
        }
        Finish(it->first);
        it = made.erase(it);
      }
      rank_.OnTimer(now_ + kStep / 2, out_);
      for (const StepReport& report : Reports()) {
        placed -= static_cast<int32_t>(report.finished.size());
        service.extra = report.extra_slots;
      }
      place();
    }
    return service;
  }
};

TEST_F(SlotsTest, NoSlotIsEmptyWithCreditForARoundTrip) {
  const Service without = ServeFive(false), with = ServeFive(true);
  EXPECT_GT(without.empty, 10);
  EXPECT_EQ(with.empty, 0);
  // Four slots end 0.8 requests per step: 1.6 during a round trip and a step.
  EXPECT_EQ(with.extra, 3);
  EXPECT_LE(with.waited, 3);
}

TEST_F(EngineRankTest, WhereFewEndNoneWaitInTheEngine) {
  max_new_tokens_ = 1'000;
  Begin({1, 2, 3, 4}, {.slots = 4});
  for (uint32_t i = 0; i < 500; ++i) {
    now_ += absl::Milliseconds(20);
    for (CallNumber call = 1; call <= 4; ++call) Token(call, i);
  }
  EXPECT_EQ(Last().extra_slots, 0);
}

// --- requests that pass ---

TEST_F(EngineRankTest, MessagesGoWithTheirTokensAndWithTheEnd) {
  passed_.on = true;
  Begin({7, 8});
  const PassedPtr first = std::make_shared<AMessage>(), empty = std::make_shared<AMessage>(),
                  last = std::make_shared<AMessage>();
  rank_.OnTokens(2, {.message = empty}, now_, out_);
  StepReport report = Report();
  EXPECT_THAT(report.tokens, ElementsAre(FieldsAre(8, 0))) << "a message without tokens";
  EXPECT_THAT(report.messages[0].messages, ElementsAre(empty));
  rank_.OnTokens(1, {.ids = {100}, .message = first}, now_, out_);
  report = Report();
  EXPECT_EQ(report.tokens[0].count, 1u);
  EXPECT_THAT(report.messages[0].messages, ElementsAre(first));
  EXPECT_THAT(report.prefill->prompts, SizeIs(1));
  rank_.OnFinished(1, {EngineFinish::kStop, last}, now_, out_);
  report = Report();
  EXPECT_THAT(report.messages[0].messages, ElementsAre(last));
  EXPECT_EQ(report.finished[0].id, 7u);
}

TEST_F(EngineRankTest, APromptWhoseKvComesFromElsewhereIsNoWork) {
  passed_ = {.on = true, .kv_from_elsewhere = true};
  Epoch(1);
  Plan({7});
  const StepReport report = Report();
  EXPECT_EQ(report.load_tokens, 10);
  EXPECT_EQ(report.prefill->pending_tokens(), 1);
  // A client's hand-off is not sent to a second rank.
  rank_.OnFinished(1, {.finish = EngineFinish::kError}, now_, out_);
  const auto rejected = Report().rejected;
  ASSERT_THAT(rejected, SizeIs(1));
  EXPECT_TRUE(absl::IsInternal(rejected[0].status));
}

// --- engine rank load ---

// What an engine reports of a rank: requests of other clients, memory that prompts share, and prompt tokens
// that it found in its prefix cache.

TEST_F(EngineRankTest, RequestsOfOtherClientsTakeSlotsAndTokens) {
  Begin({1, 2}, {.slots = 8});
  Load(5, 500);
  EXPECT_THAT(Reports(), IsEmpty()) << "they may be this router's own that have just ended";
  now_ += absl::Seconds(1);
  Load(4, 500);
  const StepReport report = Report();
  EXPECT_EQ(report.extra_slots, -2);
  EXPECT_EQ(report.load_tokens, 2 * 10 + 2 * 125);
  EXPECT_EQ(report.engine_load->tokens, 500);
  rank_.OnLoad(std::nullopt, now_, out_);
  EXPECT_EQ(Last().extra_slots, 0) << "an engine that does not answer is not believed for long";
  for (int i = 0; i < 3; ++i, now_ += absl::Seconds(1)) Load(int64_t{1} << 40, 1);
  EXPECT_EQ(Last().extra_slots, -7) << "an engine that reports too much keeps a slot";
}

// Records of an engine's steps arrive as often as this.
TEST_F(EngineRankTest, OtherClientsAreCountedOverAllReportsOfAWindow) {
  Begin({1}, {.slots = 8});
  const auto report = [&](int64_t requests, int times = 5) {
    for (int i = 0; i < times; ++i) {
      now_ += absl::Milliseconds(100);
      Load(requests, 10 * requests);
    }
  };
  report(4);
  EXPECT_THAT(Reports(), IsEmpty()) << "within a window they may be this router's own that have just ended";
  report(4);
  EXPECT_EQ(Report().extra_slots, -3);
  report(2, 1);
  EXPECT_EQ(Report().extra_slots, -1) << "fewer are believed at once";
  report(4);
  EXPECT_THAT(Reports(), IsEmpty()) << "the last window had a report of fewer";
}

// Four prompts of 100 tokens share their first 80: the engine holds 80 + 4 * 20 and the generated tokens.
TEST_F(EngineRankTest, MemoryThatPromptsShareIsFree) {
  prompt_tokens_ = max_new_tokens_ = 100;
  Begin({1, 2, 3, 4}, {.slots = 8, .kv_tokens = 1000});
  std::vector<CallNumber> running = {1, 2, 3, 4};
  int64_t generated = 0;
  // The engine reports its load, then each request gets a token. Returns the reported shared tokens.
  const auto shared = [&](std::optional<int64_t> in_use) {
    now_ += absl::Milliseconds(300);
    rank_.OnLoad(in_use ? std::optional(EngineLoad{std::ssize(running), *in_use}) : std::nullopt, now_, out_);
    for (const CallNumber call : running) Token(call, 7);
    ++generated;
    Wait(StreamedRank::kLongestGather);
    return Last().shared_kv_tokens;
  };
  const auto in_use = [&] { return 80 + std::ssize(running) * (20 + generated); };
  // 1,000 tokens of memory hold so many more.
  const auto expected = [&] { return 1000 * std::ssize(running) * (100 + generated) / in_use() - 1000; };
  EXPECT_EQ(shared(in_use()), 0) << "no prompt is known to be computed";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(shared(in_use()), 0) << "not in all of two windows";
  int64_t more = expected();
  EXPECT_EQ(shared(in_use()), more);
  Finish(4, EngineFinish::kStop);
  running.pop_back();
  more = expected();
  EXPECT_EQ(shared(in_use()), more) << "less is believed at once";
  EXPECT_EQ(shared(std::nullopt), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(shared(0), 0) << "it does not count";
}

// A rank that finds nothing is trusted less, so 0 is reported like any other number.
TEST_F(EngineRankTest, CachedTokensAreReportedOnceWithTheFirstToken) {
  Begin({7, 8});
  const auto bring = [&](CallNumber call, int64_t cached) { Token(call, 100, cached); };
  const auto reported = [&] {
    Wait(absl::Seconds(1));
    std::vector<std::pair<core::RequestId, int64_t>> all;
    for (const StepReport& report : Reports())
      for (const core::CachedPrompt& cached : report.cached) all.emplace_back(cached.id, cached.tokens);
    return all;
  };
  bring(1, 6);
  bring(2, 0);
  EXPECT_THAT(reported(), UnorderedElementsAre(std::pair(7, 6), std::pair(8, 0)));
  for (const CallNumber call : {1, 2}) bring(call, 6);
  EXPECT_THAT(reported(), IsEmpty()) << "every message of the engine repeats the number";
  // The number counts again when the request is placed again, on this or another rank.
  Plan({}, {7});
  Plan({7});
  bring(3, 1'000);
  EXPECT_THAT(reported(), ElementsAre(std::pair(7, 10))) << "no more than its prompt";
}

}  // namespace
}  // namespace bfio::router
