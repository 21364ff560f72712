// An engine rank: cache hits compared with a comparison of all tokens, memory, ends, and step times by hand.
#include "tools/sim/prefixes/engine_model.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/tools/sim/prefixes/token_request.h"

namespace bfio::sim {
namespace {

// Runs until all requests have ended; returns the prompt tokens found in the cache, by request.
std::map<core::RequestId, int64_t> RunAll(EngineModel& engine) {
  std::map<core::RequestId, int64_t> cached;
  while (!engine.idle()) {
    engine.BeginStep();
    for (const EngineStep::First& first : engine.EndStep().first_tokens)
      cached[first.request->id] = first.cached;
  }
  return cached;
}

int64_t RunOne(EngineModel& engine, const PrefixRequest& request) {
  engine.Submit(request);
  return RunAll(engine)[request.id];
}

TEST(EngineModelTest, HitsAreThoseOfAComparisonOfAllTokens) {
  EngineModel engine({.kv_tokens = 1'000'000});
  Rng rng(3);
  std::vector<Tokens> computed;
  for (core::RequestId id = 1; id <= 200; ++id) {
    // Prompts are parts of texts, or continue earlier sequences.
    Tokens tokens = Text(rng.Below(3), 1 + rng.Below(200));
    if (!computed.empty() && rng.Below(2) == 0) {
      tokens = computed[rng.Below(computed.size())];
      tokens.resize(1 + rng.Below(tokens.size()));
    }
    tokens = tokens + Text(10 + rng.Below(2), 1 + rng.Below(100));
    const auto prompt = static_cast<int64_t>(tokens.size());
    tokens = tokens + Text(100 + id, 1 + rng.Below(50));
    int64_t common = 0;
    for (const Tokens& earlier : computed) {
      const auto ends =
          std::mismatch(earlier.begin(), earlier.end(), tokens.begin(), tokens.begin() + prompt - 1);
      common = std::max<int64_t>(common, ends.first - earlier.begin());
    }
    const PrefixRequest request = RequestOf(id, tokens, prompt);
    const int64_t expected = common / kEngineBlockTokens * kEngineBlockTokens;
    EXPECT_EQ(engine.Cached(request), expected);
    ASSERT_EQ(RunOne(engine, request), expected) << "request " << id;
    // The last token is generated; its KV is never computed.
    tokens.pop_back();
    computed.push_back(tokens);
  }
}

TEST(EngineModelTest, TheLeastRecentlyUsedGoFirstLastBlocksBeforeFirstOnes) {
  EngineModel engine({.kv_tokens = 10 * kEngineBlockTokens});
  const PrefixRequest a = RequestOf(1, Text(1, 65), 64), b = RequestOf(2, Text(2, 65), 64);
  RunOne(engine, a);
  RunOne(engine, b);
  // 8 blocks have contents: the request takes two empty ones, then the last two of a.
  RunOne(engine, RequestOf(3, Text(3, 65), 64));
  EXPECT_EQ(engine.Cached(RequestOf(4, Text(1, 80), 80)), 32);
  EXPECT_EQ(engine.Cached(RequestOf(4, Text(2, 80), 80)), 64);
}

TEST(EngineModelTest, WithoutCacheEveryPromptIsComputed) {
  EngineModel engine({.caches = false});
  RunOne(engine, RequestOf(1, Text(1, 101), 100));
  EXPECT_EQ(RunOne(engine, RequestOf(2, Text(1, 101), 100)), 0);
}

TEST(EngineModelTest, PromptsOfOneStepShareToo) {
  EngineModel engine({});
  const PrefixRequest a = RequestOf(1, Text(1, 101), 100), b = RequestOf(2, Text(1, 101), 100);
  engine.Submit(a);
  engine.Submit(b);
  EXPECT_EQ(RunAll(engine)[2], 96);
}

TEST(EngineModelTest, ShortOfMemoryAllRequestsEndAndAllBlocksAreFree) {
  EngineModel engine({.slots = 8, .token_budget = 64, .kv_tokens = 40 * kEngineBlockTokens});
  Rng rng(5);
  std::vector<PrefixRequest> requests;
  for (core::RequestId id = 1; id <= 100; ++id) {
    const auto prompt = static_cast<int64_t>(1 + rng.Below(200));
    requests.push_back(RequestOf(
        id, Text(rng.Below(4), static_cast<size_t>(prompt)) + Text(100 + id, 1 + rng.Below(300)), prompt));
  }
  for (const PrefixRequest& request : requests) engine.Submit(request);
  std::map<core::RequestId, int> first, finished;
  while (!engine.idle()) {
    std::map<core::RequestId, int64_t> before;
    for (const HeldRequest& held : engine.Held()) before[held.request->id] = held.generated;
    engine.BeginStep();
    ASSERT_LE(engine.running(), 8);
    ASSERT_GE(engine.pool().free_blocks(), 0);
    const EngineStep step = engine.EndStep();
    for (const EngineStep::First& one : step.first_tokens) ++first[one.request->id];
    for (const PrefixRequest* one : step.finished) {
      ++finished[one->id];
      EXPECT_EQ(before[one->id], one->output_tokens - 1) << "it ends with its last token";
    }
    for (const HeldRequest& held : engine.Held()) {
      ASSERT_GE(held.generated, before[held.request->id]);
      ASSERT_LE(held.generated, before[held.request->id] + 1);
    }
  }
  EXPECT_GT(engine.preemptions(), 0);
  EXPECT_EQ(engine.pool().free_blocks(), engine.pool().size());
  for (const PrefixRequest& request : requests) {
    EXPECT_EQ(first[request.id], 1);
    EXPECT_EQ(finished[request.id], 1);
  }
}

TEST(EngineModelTest, StepTimesByHand) {
  const BatchCost cost = {
      .c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0, .k1_s_per_pair = 0.5, .k2_s_per_token = 0.25};
  EngineModel engine({.token_budget = 32, .cost = cost});
  const PrefixRequest request = RequestOf(1, Text(1, 43), 40);
  engine.Submit(request);
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1 + 0.32 + 0.5 * 32 * 16);
  EXPECT_EQ(engine.EndStep().first_tokens.size(), 0u);
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1 + 0.08 + 0.5 * 8 * (32 + 4));
  EngineStep step = engine.EndStep();
  EXPECT_EQ(step.first_tokens.size(), 1u);
  EXPECT_EQ(step.load_tokens, 40);
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1 + 0.01 + 0.25 * 41);
  step = engine.EndStep();
  EXPECT_EQ(step.load_tokens, 41);
  EXPECT_EQ(step.finished.size(), 0u);
  engine.BeginStep();
  EXPECT_THAT(engine.EndStep().finished, ::testing::ElementsAre(&request));
  EXPECT_TRUE(engine.idle());
}

TEST(EngineModelTest, ALevelBoundsThePromptTokensOfAStep) {
  const BatchCost cost = {.c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0, .k2_s_per_token = 0};
  EngineModel engine({.token_budget = 32, .cost = cost});
  const PrefixRequest first = RequestOf(1, Text(1, 14), 10), second = RequestOf(2, Text(100, 30), 26);
  engine.Submit(first);
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1.1);
  engine.EndStep();
  engine.Submit(second);
  engine.SetLevel(1.065);
  // One decode, and five tokens of the second prompt.
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1.06);
  engine.EndStep();
  EXPECT_EQ(engine.Held()[1].left, 21);
  engine.SetLevel(1.015);
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1.01) << "decodes go on";
  engine.EndStep();
  engine.SetLevel(std::nullopt);
  EXPECT_DOUBLE_EQ(engine.BeginStep(), 1.22);
  EXPECT_EQ(engine.EndStep().first_tokens.size(), 1u);
}

}  // namespace
}  // namespace bfio::sim
