// Requests that an engine refuses or loses, and ranks that fall silent.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "router/requests/not_tried.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RefusalTest : public EngineRankTest {
 protected:
  static absl::Status FullFor(absl::Duration delay) {
    absl::Status full = absl::ResourceExhaustedError("full");
    SetRetryDelay(full, delay);
    return full;
  }
  // How long the rank keeps a request that the engine has refused.
  absl::Duration KeptFor(const absl::Status& why) {
    const CallNumber call = out_.start.empty() ? 1 : out_.start.back().number + 1;
    Plan({7});
    Reports();
    Fail(call, why);
    const absl::Time start = now_;
    for (std::vector<StepReport> reports; now_ - start < absl::Minutes(1); reports = Reports()) {
      for (const StepReport& report : reports) {
        if (report.rejected.empty()) continue;
        EXPECT_TRUE(absl::IsResourceExhausted(report.rejected[0].status));
        EXPECT_TRUE(report.group_idle);
        return now_ - start;
      }
      EXPECT_EQ(rank_.active(), 1) << "it keeps its slot";
      Wait(rank_.next_deadline() - now_);
    }
    return absl::InfiniteDuration();
  }
};

TEST_F(RefusalTest, ARefusedRequestWaitsLongerEachTime) {
  Epoch(1);
  const absl::Status full = absl::ResourceExhaustedError("full");
  for (absl::Duration expected = EngineRank::kShortestRefusal; refusals_ < 5; ++refusals_, expected *= 2)
    EXPECT_EQ(KeptFor(full), expected) << refusals_;
  refusals_ = 1'000'000'000;
  EXPECT_EQ(KeptFor(absl::UnavailableError("gone")), EngineRank::kLongestRefusal);
  refusals_ = 0;
  EXPECT_EQ(KeptFor(FullFor(absl::Seconds(3))), absl::Seconds(3)) << "the engine may say how long";
  EXPECT_EQ(KeptFor(FullFor(absl::Hours(3))), EngineRank::kLongestRetryInfo);
}

// Plans arrive more often than the rank's own steps.
TEST_F(RefusalTest, PlansDoNotPutOffTheReportsOfARankWithRefusedRequestsAlone) {
  Begin({7}, {.slots = 8});
  Fail(1, FullFor(absl::Seconds(5)));
  const absl::Time due = rank_.next_deadline();
  EXPECT_EQ(due, now_ + StreamedRank::kQuietStep);
  now_ += StreamedRank::kQuietStep / 2;
  Plan({});
  EXPECT_EQ(rank_.next_deadline(), due);
}

TEST_F(RefusalTest, AStepReportedAfterARefusalIsNotARefusedRequests) {
  Begin({7, 8}, {.slots = 8});
  Token(1, 100);
  Fail(2, absl::ResourceExhaustedError("full"));
  Fail(2, absl::UnavailableError("again"));
  EngineStep step = {.step = 1, .prompt_tokens = 10};
  step.prompts.push_back({{1, 1, 2}, 10, 0});
  rank_.OnStep(step, now_, out_);
  Reports();
  now_ += absl::Milliseconds(10);
  Token(1, 101);
  EXPECT_EQ(Reports().size(), 1u) << "a step does not wait for it";
  Load(1, 100);
  now_ += absl::Seconds(1);
  Load(1, 100);
  Wait(absl::Seconds(5));
  EXPECT_EQ(rank_.active(), 1);
  EXPECT_EQ(Last().extra_slots, 0) << "it is counted once";
}

// The engine neither has the refused request nor computes its prompt.
TEST_F(RefusalTest, ARefusedRequestDoesNotCountAsRunning) {
  Begin({7, 8}, {.slots = 8});
  Token(1, 100);
  Fail(2, FullFor(absl::Seconds(5)));
  Reports();
  for (int i = 0; i < 2; ++i, now_ += absl::Seconds(1)) Load(2, 100);
  EXPECT_EQ(Last().extra_slots, -1) << "another client's";
  EXPECT_EQ(rank_.next_deadline(), absl::UnixEpoch() + absl::Seconds(5)) << "a decode that stalls is silent";
  // The router may cancel the refused request.
  Plan({}, {8});
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(rank_.active(), 1);
}

// --- ranks on trial ---

TEST_F(RefusalTest, ARankOnTrialTakesOneRequestUntilItShowsThatItWorks) {
  const EngineRank::Options options = {.slots = 8, .on_trial = true};
  rank_ = StreamedRank(options);
  Epoch(1);
  Plan({7, 8});
  const StepReport report = Report();
  ASSERT_EQ(report.rejected.size(), 1u);
  EXPECT_TRUE(WasNotTried(report.rejected[0].status));
  EXPECT_EQ(report.extra_slots, 1 - 8);
  rank_.OnStep({.step = 1}, now_, out_);
  EXPECT_TRUE(rank_.on_trial()) << "it has done nothing";
  rank_.OnStep({.step = 2, .prompt_tokens = 4}, now_, out_);
  EXPECT_FALSE(rank_.on_trial());
  EXPECT_EQ(Last().extra_slots, 0);
  // A KV cache that changes shows it, too.
  Begin({7}, options);
  for (int i = 0; i < 2; ++i) Load(1, 100);
  EXPECT_TRUE(rank_.on_trial());
  Load(1, 101);
  EXPECT_FALSE(rank_.on_trial());
}

// --- lost requests ---

class LostRequestTest : public EngineRankTest {
 protected:
  void SetUp() override {
    max_new_tokens_ = 10'000;
    Begin({7, 8});
    Token(1, 100);
    Token(2, 200);
  }
  // The first request generates a token. Returns the requests that the rank returns to the router.
  std::vector<core::RequestId> Step(absl::Duration took) {
    now_ += took;
    Token(1, 101);
    Wait(StreamedRank::kLongestGather);
    std::vector<core::RequestId> preempted;
    for (const StepReport& report : Reports())
      preempted.insert(preempted.end(), report.preempted.begin(), report.preempted.end());
    return preempted;
  }
  std::vector<core::RequestId> Steps(int64_t count = 2 * StreamedRank::kSilentSteps) {
    std::vector<core::RequestId> preempted;
    for (int64_t i = 0; i < count && preempted.empty(); ++i) preempted = Step(absl::Milliseconds(50));
    return preempted;
  }
};

// The rank continues, so it is not disconnected.
TEST_F(LostRequestTest, ARequestThatTheEngineForgetsGoesOnElsewhere) {
  Load(1, 100);
  EXPECT_THAT(Step(2 * EngineRank::kLongestQuiet), IsEmpty()) << "the other one may be as late";
  EXPECT_THAT(Steps(StreamedRank::kSilentSteps - 2), IsEmpty());
  EXPECT_THAT(out_.cancel, IsEmpty());
  EXPECT_THAT(Steps(), ElementsAre(8));
  EXPECT_THAT(out_.cancel, ElementsAre(2));
  EXPECT_EQ(rank_.active(), 1);
}

// It waits in the engine's queue.
TEST_F(LostRequestTest, AnEngineThatCountsItHasPreemptedIt) {
  for (int i = 0; i < 20; ++i) {
    now_ += EngineRank::kLongestQuiet;
    Load(2, 100);
    Load(1, 100);  // a report may have been made before the last request arrived
    ASSERT_THAT(Steps(), IsEmpty());
  }
  EXPECT_THAT(Step(EngineRank::kLongestQuiet), ElementsAre(8)) << "no report has counted it since";
}

TEST_F(LostRequestTest, WithoutLoadsItHasMoreTime) {
  Step((StreamedRank::kQuietWithoutLoads - 1) * EngineRank::kLongestQuiet);
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_THAT(Step(EngineRank::kLongestQuiet), ElementsAre(8));
}

// The report counts the request, so its first token can be expected.
TEST_F(LostRequestTest, APromptThatTheEngineReportsIsNotLost) {
  Plan({9});
  Load(1, 100);
  now_ += EngineRank::kLongestQuiet;
  for (int64_t i = 0; i < 2 * StreamedRank::kSilentSteps; ++i) {
    Token(2, 201);
    ASSERT_THAT(Step(absl::Milliseconds(50)), IsEmpty());
  }
  EngineStep step = {.step = 1, .decodes = 2, .prompt_tokens = 10};
  step.prompts.push_back({{1, 1, 3}, 10, 0});
  rank_.OnStep(step, now_, out_);
  Token(2, 201);
  EXPECT_THAT(Step(absl::Milliseconds(50)), IsEmpty());
  EXPECT_THAT(out_.cancel, IsEmpty());
}

TEST_F(LostRequestTest, StepsAloneAreNoSignThatItIsForgotten) {
  for (int64_t i = 0; i < 10 * StreamedRank::kSilentSteps; ++i) {
    now_ += absl::Milliseconds(50);
    Token(1, 101);
  }
  EXPECT_THAT(out_.cancel, IsEmpty()) << "the engine may compute it again: it has preempted it";
}

// --- engine rank silence ---

// A rank that sends no tokens: while it computes a prompt, and when it hangs.

// Shorter than `time` by at most one quiet step.
MATCHER_P(IsAlmost, time, "") {
  return arg <= time && arg >= time - StreamedRank::kQuietStep;
}

constexpr absl::Duration kNone = absl::ZeroDuration();

class SilenceTest : public EngineRankTest {
 protected:
  // A request that decodes.
  void Decode(core::RequestId id) {
    Begin({id});
    Token(1, 100);
    Reports();
  }
  void PlanLong(core::RequestId id, size_t prompt_tokens) {
    prompt_tokens_ = prompt_tokens;
    Plan({id});
    prompt_tokens_ = 10;
    Reports();
  }
};

TEST_F(SilenceTest, ALongPromptIsReportedWhileNothingComes) {
  Begin({7});
  for (int i = 0; i < 2; ++i) {
    Wait(StreamedRank::kQuietStep);
    const StepReport report = Report();
    EXPECT_EQ(report.prefill->pending_tokens(), 10);
    EXPECT_EQ(report.local, StreamedRank::kQuietStep);
  }
}

// The group's step timeout has to see it.
TEST_F(SilenceTest, ARankWithoutTokensForTooLongIsSilent) {
  Begin({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
  Wait(absl::Minutes(1));
  EXPECT_THAT(Reports(), IsEmpty());
  // Neither new requests nor a new epoch show that the engine works; each is acknowledged once.
  Plan({8});
  Epoch(2);
  Plan({9});
  Reports();
  EXPECT_EQ(ReportedFor(), kNone);
  // Requests of others that come and go do not show it either; growth of their KV cache does.
  for (const int64_t requests : {5, 6}) Load(requests, 100);
  EXPECT_EQ(ReportedFor(), kNone);
  Load(6, 101);
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
  Decode(7);
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture()) << "decodes that stall";
  Wait(absl::Minutes(1));
  EXPECT_THAT(Reports(), IsEmpty());
}

TEST_F(SilenceTest, TokensAreASignThatTheRankWorks) {
  max_new_tokens_ = 1;
  Begin({7, 8});
  Wait(EngineRank::kLongestQuiet - StreamedRank::kQuietStep);
  Token(1, 100);
  Finish(1);
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
}

TEST_F(SilenceTest, TheTimeWithoutTokensIsLongerForLongPromptsAndLongStepTimeouts) {
  prompt_tokens_ = 200'000;
  Begin({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(200)));
  prompt_tokens_ = 10;
  step_timeout_ = absl::Seconds(20);
  Begin({7});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(120)));
  // The time starts again when an idle rank gets its next request.
  Plan({}, {7});
  Wait(absl::Minutes(10));
  Plan({8});
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(120)));
}

TEST_F(SilenceTest, ARequestBehindALongPromptGetsItsOwnTime) {
  Begin({});
  PlanLong(7, 200'000);
  Wait(absl::Seconds(100));
  Plan({8});
  Wait(absl::Seconds(50));
  Plan({}, {7});
  EXPECT_THAT(ReportedFor(), IsAlmost(EngineRank::kLongestQuiet));
  // No longer than that, although requests come and go.
  Plan({9});
  Plan({}, {8});
  EXPECT_THAT(ReportedFor(), IsAlmost(kNone));
}

// An engine that computes prompts first generates no tokens in the meantime.
TEST_F(SilenceTest, DecodesThatStopForALongPromptAreNoStall) {
  Decode(7);
  PlanLong(8, 300'000);
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(300)));
  // Once the prompt is computed, decodes that stop are a stall.
  Token(2, 200);
  Token(1, 101);
  ReportedFor();
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(SilenceTest, DecodesThatStopForAnotherRankOfTheBarrierAreNoStall) {
  EngineBarrier barrier;
  Begin({}, {.barrier = &barrier, .number = 2});
  PlanLong(8, 300'000);
  StreamedRank other({.barrier = &barrier, .number = 1});
  std::swap(rank_, other);
  Epoch(1);
  Plan({7});
  Token(1, 100);
  Reports();
  EXPECT_THAT(ReportedFor(), IsAlmost(absl::Seconds(300)));
  std::swap(rank_, other);
  Token(1, 200);
  ReportedFor();
  std::swap(rank_, other);
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture()) << "it is computed";
}

// A prompt of another client is visible only in the use of KV memory.
TEST_F(SilenceTest, DecodesThatStopWhileTheKvCacheGrowsAreNoStall) {
  Decode(7);
  Load(2, 100);
  Reports();
  for (int64_t chunk = 1; chunk <= 13; ++chunk) {
    now_ += absl::Seconds(1);
    Load(2, 100 + std::min<int64_t>(chunk, 12) * 8'192);
    EXPECT_THAT(Reports(), SizeIs(chunk <= 12 ? 1 : 0)) << "until it grows no more";
  }
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace bfio::router
