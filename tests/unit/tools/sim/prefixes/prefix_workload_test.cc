// Traffic with shared prefixes: the lengths of turns, and block names that depend on all earlier tokens.
#include "tools/sim/prefixes/prefix_workload.h"

#include <algorithm>

#include "gmock/gmock.h"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;

PrefixWorkload Workload(const char* name, uint64_t seed = 1) {
  return {*FindWorkload(name), seed};
}

TEST(PrefixWorkloadTest, ATurnBeginsWithAllThatWasSaid) {
  const PrefixWorkload workload = Workload("agents");
  int turns = 0;
  for (int64_t number = 0; number < 5; ++number) {
    PrefixWorkload::Session session = workload.NewSession(number);
    auto before = workload.NextTurn(session);
    ASSERT_TRUE(before);
    for (auto next = workload.NextTurn(session); next; next = workload.NextTurn(session), ++turns) {
      EXPECT_GT(next->prompt_tokens, before->prompt_tokens + before->output_tokens);
      ASSERT_GE(next->blocks.size(), before->blocks.size());
      EXPECT_TRUE(std::equal(before->blocks.begin(), before->blocks.end(), next->blocks.begin()));
      EXPECT_TRUE(std::equal(before->prefix->begin(), before->prefix->end(), next->prefix->begin()));
      EXPECT_EQ(next->prefix->size(), static_cast<size_t>(next->prompt_tokens / core::kPrefixBlockTokens));
      for (size_t i = 0; i < next->prefix->size(); ++i)
        ASSERT_EQ((*next->prefix)[i], next->blocks[4 * i + 3]);
      before = next;
    }
  }
  EXPECT_GT(turns, 10);
}

TEST(PrefixWorkloadTest, SessionsShareTheirFirstTextAlone) {
  const PrefixWorkload workload = Workload("agents");
  PrefixWorkload::Session a = workload.NewSession(1), b = workload.NewSession(2);
  const auto first = workload.NextTurn(a), second = workload.NextTurn(b);
  const auto ends =
      std::mismatch(first->blocks.begin(), first->blocks.end(), second->blocks.begin(), second->blocks.end());
  EXPECT_EQ(ends.first - first->blocks.begin(), 3'000 / kEngineBlockTokens);
}

TEST(PrefixWorkloadTest, WorkloadsWithoutSharedTextsShareNothing) {
  const PrefixWorkload workload = Workload("none");
  PrefixWorkload::Session a = workload.NewSession(1), b = workload.NewSession(2);
  EXPECT_NE(workload.NextTurn(a)->blocks.front(), workload.NextTurn(b)->blocks.front());
  EXPECT_FALSE(workload.NextTurn(a).has_value()) << "one turn";
}

TEST(PrefixWorkloadTest, MeanLengthsAreThoseOfTheShape) {
  const PrefixWorkload workload = Workload("system_prompts");
  double output = 0, turns = 0;
  constexpr int kSessions = 4'000;
  for (int i = 0; i < kSessions; ++i) {
    PrefixWorkload::Session session = workload.NewSession(i);
    output += static_cast<double>(workload.NextTurn(session)->output_tokens);
  }
  EXPECT_NEAR(output / kSessions, 200, 15);
  const PrefixWorkload chat = Workload("chat");
  for (int i = 0; i < kSessions; ++i) {
    PrefixWorkload::Session session = chat.NewSession(i);
    while (chat.NextTurn(session)) ++turns;
  }
  EXPECT_NEAR(turns / kSessions, 5, 0.4);
}

// Prompts of 160 tokens and outputs of 3,569 in 64 slots, computed by hand: decodes take nearly all of the
// time.
TEST(PrefixWorkloadTest, CapacityIsThatOfFullRanks) {
  EngineModelOptions engine;
  engine.kv_tokens = 100'000'000;
  engine.cost = {.c_s = 0.01, .a_s_per_token = 0, .b0_tokens = 0};
  const double capacity = Workload("reasoning").Capacity(engine);
  EXPECT_NEAR(capacity * 3'569 / (64 / 0.01), 1, 0.05);
}

TEST(PrefixWorkloadTest, UnknownNamesAreRefused) {
  EXPECT_THAT(std::string(FindWorkload("x").status().message()),
              HasSubstr("none, reasoning, system_prompts"));
}

}  // namespace
}  // namespace bfio::sim
