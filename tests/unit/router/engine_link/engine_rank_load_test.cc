// What an engine reports of a rank: requests of other clients, memory that prompts share, and prompt tokens
// that it found in its prefix cache.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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
