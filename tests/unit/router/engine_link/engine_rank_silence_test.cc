// A rank that sends no tokens: while it computes a prompt, and when it hangs.
#include <algorithm>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

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
