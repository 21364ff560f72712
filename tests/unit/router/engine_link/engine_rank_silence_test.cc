// A rank that sends no tokens: while it computes a prompt, and when it hangs.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kLongPrompt = 300'000;
constexpr absl::Duration kItsTime = absl::Seconds(300);

// An engine that computes prompts first generates no tokens in the meantime.
TEST_F(EngineRankTest, DecodesThatStopForALongPromptAreNoStall) {
  Epoch(1);
  Plan({7});
  Token(1, 100);
  prompt_tokens_ = kLongPrompt;
  Plan({8});
  Reports();
  const absl::Duration reported = ReportedFor();
  EXPECT_GT(reported, kItsTime - 2 * EngineRank::kQuietStep);
  EXPECT_LE(reported, kItsTime);
  // Once the prompt is computed, decodes that stop are a stall.
  Token(2, 200);
  Token(1, 101);
  ReportedFor();
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(EngineRankTest, DecodesThatStopForAnotherRankOfTheBarrierAreNoStall) {
  BarrierPrompts prompts;
  EngineRank other({.number = 2, .prompts = &prompts});
  std::swap(rank_, other);
  Epoch(1);
  prompt_tokens_ = kLongPrompt;
  Plan({8});
  std::swap(rank_, other);
  rank_ = EngineRank({.number = 1, .prompts = &prompts});
  prompt_tokens_ = 10;
  Epoch(1);
  Plan({7});
  Token(1, 100);
  Reports();
  const absl::Duration reported = ReportedFor();
  EXPECT_GT(reported, kItsTime - 2 * EngineRank::kQuietStep);
  EXPECT_LE(reported, kItsTime);
  std::swap(rank_, other);
  Token(1, 200);
  ReportedFor();
  std::swap(rank_, other);
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture()) << "it is computed";
}

// A prompt of another client is visible only in the use of KV memory.
TEST_F(EngineRankTest, DecodesThatStopWhileTheKvCacheGrowsAreNoStall) {
  Epoch(1);
  Plan({7});
  Token(1, 100);
  Reports();
  rank_.OnLoad(EngineLoad{2, 100}, now_, out_);
  Reports();
  for (int64_t chunk = 1; chunk <= 12; ++chunk) {
    now_ += absl::Seconds(1);
    rank_.OnLoad(EngineLoad{2, 100 + chunk * 8'192}, now_, out_);
    EXPECT_THAT(Reports(), SizeIs(1));
  }
  now_ += absl::Seconds(1);
  rank_.OnLoad(EngineLoad{2, 100 + 12 * 8'192}, now_, out_);
  EXPECT_THAT(Reports(), IsEmpty()) << "it grows no more";
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace bfio::router
