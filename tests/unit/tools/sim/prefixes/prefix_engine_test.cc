// An engine rank: cache hits compared with a comparison of all tokens, memory, ends, and step times by hand.
// Other routers' rules on such ranks: one case for each statement of their descriptions.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "tools/sim/prefixes/dispatcher.h"
#include "tools/sim/prefixes/engine_model.h"

namespace bfio::sim {
namespace {

using Tokens = std::vector<uint64_t>;

// `length` tokens of a text.
Tokens Text(uint64_t text, size_t length) {
  Tokens tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(text << 32 | i);
  return tokens;
}
Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A request with these tokens. Blocks are named by all tokens up to their ends.
PrefixRequest RequestOf(core::RequestId id, const Tokens& tokens, size_t prompt) {
  PrefixRequest request;
  request.id = id;
  request.prompt_tokens = static_cast<int64_t>(prompt);
  request.output_tokens = request.max_new_tokens = static_cast<int64_t>(tokens.size() - prompt);
  std::vector<uint64_t> names;
  uint64_t name = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    name = Mix64(name ^ Mix64(tokens[i]));
    if ((i + 1) % kEngineBlockTokens == 0) request.blocks.push_back(name);
    if ((i + 1) % core::kPrefixBlockTokens == 0 && i < prompt) names.push_back(name);
  }
  request.prefix = std::make_shared<const std::vector<uint64_t>>(names);
  return request;
}

// Runs the requests until all have ended; returns the prompt tokens found in the cache, by request.
std::map<core::RequestId, int64_t> RunAll(EngineModel& engine, const std::vector<PrefixRequest>& requests) {
  for (const PrefixRequest& request : requests) engine.Submit(request);
  std::map<core::RequestId, int64_t> cached;
  while (!engine.idle()) {
    engine.BeginStep();
    for (const EngineStep::First& first : engine.EndStep().first_tokens)
      cached[first.request->id] = first.cached;
  }
  return cached;
}

TEST(EngineModelTest, HitsAreThoseOfAComparisonOfAllTokens) {
  EngineModel engine({.kv_tokens = 1'000'000}), without({.caches = false});
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
    const size_t prompt = tokens.size();
    tokens = tokens + Text(100 + id, 1 + rng.Below(50));
    int64_t common = 0;
    for (const Tokens& earlier : computed) {
      const auto end = tokens.begin() + static_cast<int64_t>(prompt) - 1;
      const auto ends = std::mismatch(earlier.begin(), earlier.end(), tokens.begin(), end);
      common = std::max<int64_t>(common, ends.first - earlier.begin());
    }
    const PrefixRequest request = RequestOf(id, tokens, prompt);
    const int64_t expected = common / kEngineBlockTokens * kEngineBlockTokens;
    EXPECT_EQ(engine.Cached(request), expected);
    ASSERT_EQ(RunAll(engine, {request})[id], expected) << "request " << id;
    ASSERT_EQ(RunAll(without, {request})[id], 0);
    // The last token is generated; its KV is never computed.
    tokens.pop_back();
    computed.push_back(tokens);
  }
  const PrefixRequest one = RequestOf(1, Text(50, 101), 100), two = RequestOf(2, Text(50, 101), 100);
  EXPECT_EQ(RunAll(engine, {one, two})[2], 96) << "prompts of one step share too";
}

TEST(EngineModelTest, TheLeastRecentlyUsedGoFirstLastBlocksBeforeFirstOnes) {
  EngineModel engine({.kv_tokens = 10 * kEngineBlockTokens});
  // Two have left 8 blocks with contents: the third takes two empty ones, then the last two of the first.
  for (const uint64_t text : {1, 2, 3}) RunAll(engine, {RequestOf(text, Text(text, 65), 64)});
  EXPECT_EQ(engine.Cached(RequestOf(4, Text(1, 80), 80)), 32);
  EXPECT_EQ(engine.Cached(RequestOf(4, Text(2, 80), 80)), 64);
}

TEST(EngineModelTest, ShortOfMemoryAllRequestsEndAndAllBlocksAreFree) {
  EngineModel engine({.slots = 8, .token_budget = 64, .kv_tokens = 40 * kEngineBlockTokens});
  Rng rng(5);
  std::vector<PrefixRequest> requests;
  for (core::RequestId id = 1; id <= 100; ++id) {
    const size_t prompt = 1 + rng.Below(200);
    const Tokens text = Text(rng.Below(4), prompt);
    requests.push_back(RequestOf(id, text + Text(100 + id, 1 + rng.Below(300)), prompt));
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
      const int64_t more = held.generated - before[held.request->id];
      ASSERT_TRUE(more == 0 || more == 1);
    }
  }
  EXPECT_GT(engine.preemptions(), 0);
  EXPECT_EQ(engine.pool().free_blocks(), engine.pool().size());
  for (const PrefixRequest& request : requests) {
    EXPECT_EQ(first[request.id], 1);
    EXPECT_EQ(finished[request.id], 1);
  }
}

TEST(EngineModelTest, StepTimesByHandAndALevelBoundsTheirPromptTokens) {
  const BatchCost cost = {
      .c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0, .k1_s_per_pair = 0.5, .k2_s_per_token = 0.25};
  EngineModel engine({.token_budget = 32, .cost = cost});
  const PrefixRequest request = RequestOf(1, Text(1, 43), 40);
  engine.Submit(request);
  // Seconds, first tokens, load and ends of each step.
  const struct {
    double seconds;
    size_t firsts;
    int64_t load;
    size_t ends;
  } kSteps[] = {{1 + 0.32 + 0.5 * 32 * 16, 0, 40, 0},
                {1 + 0.08 + 0.5 * 8 * (32 + 4), 1, 40, 0},
                {1 + 0.01 + 0.25 * 41, 0, 41, 0},
                {1 + 0.01 + 0.25 * 42, 0, 42, 1}};
  for (const auto& expected : kSteps) {
    EXPECT_DOUBLE_EQ(engine.BeginStep(), expected.seconds);
    const EngineStep step = engine.EndStep();
    EXPECT_EQ(step.first_tokens.size(), expected.firsts);
    EXPECT_TRUE(&expected == kSteps || step.load_tokens == expected.load);
    EXPECT_EQ(step.finished.size(), expected.ends);
  }
  EXPECT_TRUE(engine.idle());

  EngineModel levelled({.token_budget = 32, .cost = {.c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0}});
  const PrefixRequest first = RequestOf(1, Text(1, 14), 10), second = RequestOf(2, Text(100, 30), 26);
  const auto step = [&](std::optional<double> level_s) {
    levelled.SetLevel(level_s);
    const double seconds = levelled.BeginStep();
    levelled.EndStep();
    return seconds;
  };
  levelled.Submit(first);
  EXPECT_DOUBLE_EQ(step(std::nullopt), 1.1);
  levelled.Submit(second);
  EXPECT_DOUBLE_EQ(step(1.065), 1.06) << "one decode, and five tokens of the second prompt";
  EXPECT_EQ(levelled.Held()[1].left, 21);
  EXPECT_DOUBLE_EQ(step(1.015), 1.01) << "decodes go on";
  EXPECT_DOUBLE_EQ(step(std::nullopt), 1.22);
}

// --- rules of other routers ---

class DirectDispatchersTest : public ::testing::Test {
 protected:
  void Make(const std::string& rule) {
    for (int g = 0; g < 2; ++g) ranks_.emplace_back(EngineModelOptions());
    dispatcher_ = MakeDirectDispatcher(rule, ranks_);
  }
  // Sends a request with this prompt; returns its rank.
  int32_t Send(const Tokens& prompt) {
    const core::RequestId id = requests_.size() + 1;
    requests_.push_back(
        std::make_unique<PrefixRequest>(RequestOf(id, prompt + Text(1'000 + id, 10), prompt.size())));
    return dispatcher_->Arrived(*requests_.back()).at(0).rank;
  }
  void Finish(int32_t rank, size_t request) {
    EngineStep step;
    step.first_tokens = {{requests_[request].get(), 0}};
    step.finished = {requests_[request].get()};
    dispatcher_->Stepped(rank, step);
  }

  std::vector<EngineModel> ranks_;
  std::unique_ptr<PrefixDispatcher> dispatcher_;
  std::vector<std::unique_ptr<PrefixRequest>> requests_;
};

TEST_F(DirectDispatchersTest, LeastRequests) {
  Make("direct_least_requests");
  EXPECT_EQ(Send(Text(1, 64)), 0);
  EXPECT_EQ(Send(Text(1, 64)), 1);
  Finish(1, 1);
  EXPECT_EQ(Send(Text(1, 64)), 1);
  Make("least_work");
  EXPECT_EQ(dispatcher_, nullptr) << "unknown";
}

TEST_F(DirectDispatchersTest, SglangGoesWhereThePromptMatchesUntilRequestsAreFarApart) {
  Make("sglang_cache_aware");
  EXPECT_EQ(Send(Text(1, 640)), 0);
  EXPECT_EQ(Send(Text(2, 64)), 1) << "the smallest tree";
  EXPECT_EQ(Send(Text(3, 64)), 1) << "still";
  EXPECT_EQ(Send(Text(1, 192) + Text(4, 500)), 1) << "28 % match";
  // The ranks have 1 and 3 requests, then up to 66 and 3.
  for (int i = 0; i < 67; ++i) EXPECT_EQ(Send(Text(1, 640)), 0) << i;
  EXPECT_EQ(Send(Text(1, 640)), 1) << "68 and 3 are far apart";
}

TEST_F(DirectDispatchersTest, DynamoWeighsPromptBlocksAndActiveBlocks) {
  Make("dynamo_kv");
  EXPECT_EQ(Send(Text(1, 160)), 0);
  EXPECT_EQ(Send(Text(1, 160)), 1) << "20 blocks more to compute than 10, shared or not";
  Finish(0, 0);
  EXPECT_EQ(Send(Text(2, 160)), 0) << "nothing is active there";
  // Rank 1's cache has the prompt.
  ranks_[1].Submit(*requests_[1]);
  while (!ranks_[1].idle()) {
    ranks_[1].BeginStep();
    dispatcher_->Stepped(1, ranks_[1].EndStep());
  }
  Finish(0, 2);
  EXPECT_EQ(Send(Text(1, 160)), 1);
}

}  // namespace
}  // namespace bfio::sim
