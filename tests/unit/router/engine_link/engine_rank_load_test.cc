// What an engine reports of a rank's load: requests of other clients, and memory that prompts share.
#include <cstdint>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(EngineRankTest, RequestsOfOtherClientsTakeSlotsAndTokens) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({1, 2});
  Reports();
  rank_.OnLoad(EngineLoad{5, 500}, now_, out_);
  EXPECT_THAT(Reports(), IsEmpty()) << "they may be this router's own that have just ended";
  now_ += absl::Seconds(1);
  rank_.OnLoad(EngineLoad{4, 500}, now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].extra_slots, -2);
  EXPECT_EQ(reports[0].load_tokens, 2 * 10 + 2 * 125);
  EXPECT_EQ(reports[0].engine_load->tokens, 500);
  rank_.OnLoad(std::nullopt, now_, out_);
  EXPECT_EQ(Reports().back().extra_slots, 0) << "an engine that does not answer is not believed for long";
}

TEST_F(EngineRankTest, AnEngineThatReportsTooMuchKeepsASlot) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({1});
  for (int i = 0; i < 2; ++i, now_ += absl::Seconds(1))
    rank_.OnLoad(EngineLoad{int64_t{1} << 40, 1}, now_, out_);
  EXPECT_EQ(Reports().back().extra_slots, -7);
}

// Records of an engine's steps arrive as often as this.
TEST_F(EngineRankTest, OtherClientsAreCountedOverAllReportsOfAWindow) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({1});
  Reports();
  const auto report = [&](int64_t requests) {
    now_ += absl::Milliseconds(100);
    rank_.OnLoad(EngineLoad{requests, 10 * requests}, now_, out_);
  };
  for (const int64_t requests : {4, 4, 4, 4, 4}) report(requests);
  EXPECT_THAT(Reports(), IsEmpty()) << "within a window they may be this router's own that have just ended";
  for (const int64_t requests : {4, 4, 4, 4, 4}) report(requests);
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].extra_slots, -3);
  report(2);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].extra_slots, -1) << "fewer are believed at once";
  for (const int64_t requests : {4, 4, 4, 4, 4}) report(requests);
  EXPECT_THAT(Reports(), IsEmpty()) << "the last window had a report of fewer";
}

// Four prompts of 100 tokens share their first 80: the engine holds 80 + 4 * 20 and the generated tokens.
TEST_F(EngineRankTest, MemoryThatPromptsShareIsFree) {
  prompt_tokens_ = 100;
  max_new_tokens_ = 100;
  rank_ = EngineRank({.slots = 8, .kv_tokens = 1000});
  Epoch(1);
  Plan({1, 2, 3, 4});
  std::vector<CallNumber> running = {1, 2, 3, 4};
  int64_t generated = 0;
  // The engine reports its load, then each request gets a token. Returns the reported shared tokens.
  const auto shared = [&](std::optional<int64_t> in_use) {
    now_ += absl::Milliseconds(300);
    rank_.OnLoad(in_use ? std::optional(EngineLoad{std::ssize(running), *in_use}) : std::nullopt, now_, out_);
    for (const CallNumber call : running) Token(call, 7);
    ++generated;
    Wait(EngineRank::kLongestGather);
    return Reports().back().shared_kv_tokens;
  };
  const auto in_use = [&] { return 80 + std::ssize(running) * (20 + generated); };
  const auto all = [&] { return std::ssize(running) * (100 + generated); };
  EXPECT_EQ(shared(in_use()), 0) << "no prompt is known to be computed";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(shared(in_use()), 0) << "not in all of two windows";
  int64_t expected = 1000 * all() / in_use() - 1000;
  EXPECT_EQ(shared(in_use()), expected) << "1,000 tokens of memory hold so many more";
  rank_.OnFinished(4, {EngineFinish::kStop, nullptr, 0}, now_, out_);
  running.pop_back();
  expected = 1000 * all() / in_use() - 1000;
  EXPECT_EQ(shared(in_use()), expected) << "less is believed at once";
  EXPECT_EQ(shared(std::nullopt), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(shared(0), 0) << "it does not count";
}

}  // namespace
}  // namespace bfio::router
