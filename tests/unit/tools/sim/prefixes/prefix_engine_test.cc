// Ranks with KV memory: cache hits compared with a comparison of all tokens, memory, ends, and a level by
// hand. Other routers' rules on such ranks: one case for each statement of their descriptions.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "router/core/prefix/prefix_caches.h"
#include "tools/sim/prefixes/prefix_run.h"

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
ServeRequest RequestOf(const Tokens& tokens, size_t prompt) {
  ServeRequest request{0, static_cast<int64_t>(prompt), static_cast<int64_t>(tokens.size() - prompt)};
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

// Ranks with KV memory, by default one.
struct Engine {
  explicit Engine(ServeGroup::Options options, int64_t token_budget = 2048)
      : budget(token_budget), group(Completed(options), &requests) {}
  static ServeGroup::Options Completed(ServeGroup::Options options) {
    options.longest_output = 1'000;
    options.slots = std::max<int64_t>(options.slots, 8);
    return options;
  }
  void Submit(const ServeRequest& request) {
    requests.push_back(request);
    group.Bind(static_cast<ServeRequestIndex>(requests.size()) - 1, 0);
  }
  const ServeStep& Step(double level_s = std::numeric_limits<double>::infinity()) {
    std::vector<RankOrder> orders;
    FillBudget(group, 0, budget, orders);
    orders[0].level_s = level_s;
    now += group.Begin(0, orders);
    return group.End(0, now);
  }
  // Runs the request until it has ended; returns the prompt tokens found in the cache.
  int64_t Run(const ServeRequest& request) {
    Submit(request);
    while (group.active() > 0) Step();
    return requests.back().cached;
  }

  const int64_t budget;
  std::vector<ServeRequest> requests;
  ServeGroup group;
  double now = 0;
};

TEST(RankMemoryTest, HitsAreThoseOfAComparisonOfAllTokens) {
  Engine engine({.kv_tokens = 1'000'000}), without({.kv_tokens = 1'000'000, .caches = false});
  Rng rng(3);
  std::vector<Tokens> computed;
  for (uint64_t id = 1; id <= 200; ++id) {
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
    const ServeRequest request = RequestOf(tokens, prompt);
    const int64_t expected = common / kEngineBlockTokens * kEngineBlockTokens;
    EXPECT_EQ(engine.group.Cached(0, request), expected);
    ASSERT_EQ(engine.Run(request), expected) << "request " << id;
    ASSERT_EQ(without.Run(request), 0);
    // The last token is generated; its KV is never computed.
    tokens.pop_back();
    computed.push_back(tokens);
  }
  engine.Submit(RequestOf(Text(50, 101), 100));
  EXPECT_EQ(engine.Run(RequestOf(Text(50, 101), 100)), 96) << "prompts of one step share too";
}

TEST(RankMemoryTest, TheLeastRecentlyUsedGoFirstLastBlocksBeforeFirstOnes) {
  Engine engine({.kv_tokens = 10 * kEngineBlockTokens});
  // Two have left 8 blocks with contents: the third takes two empty ones, then the last two of the first.
  for (const uint64_t text : {1, 2, 3}) engine.Run(RequestOf(Text(text, 65), 64));
  EXPECT_EQ(engine.group.Cached(0, RequestOf(Text(1, 80), 80)), 32);
  EXPECT_EQ(engine.group.Cached(0, RequestOf(Text(2, 80), 80)), 64);
}

// With and without several tokens per step.
TEST(RankMemoryTest, ShortOfMemoryAllRequestsEndAndAllBlocksAreFree) {
  for (const double tokens_per_step : {1.0, 2.3}) {
    Engine engine({.kv_tokens = 40 * kEngineBlockTokens, .drift = Drift::Steady(tokens_per_step)}, 64);
    Rng rng(5);
    int64_t generated = 0, wanted = 0;
    for (uint64_t id = 1; id <= 100; ++id) {
      const size_t prompt = 1 + rng.Below(200), output = 1 + rng.Below(300);
      engine.Submit(RequestOf(Text(rng.Below(4), prompt) + Text(100 + id, output), prompt));
      wanted += static_cast<int64_t>(output);
    }
    std::map<ServeRequestIndex, int> first, ended;
    while (engine.group.active() > 0) {
      const ServeStep& step = engine.Step();
      const ServeRank& rank = engine.group.ranks()[0];
      ASSERT_LE(rank.running(), 8);
      ASSERT_LE(engine.group.UsedTokens(0), 40 * kEngineBlockTokens);
      generated += step.tokens;
      for (const auto& [index, g] : step.first_tokens) ++first[index];
      for (const auto& [index, g] : step.ended) ++ended[index];
      const int64_t left = std::accumulate(
          rank.prompts.begin(), rank.prompts.end(), int64_t{0},
          [](int64_t sum, const BoundPrompt& prompt) { return sum + prompt.left + prompt.done; });
      ASSERT_EQ(rank.bound_tokens, left);
    }
    EXPECT_GT(engine.group.preemptions(), 0);
    EXPECT_EQ(generated, wanted) << "each ends with its last token";
    EXPECT_EQ(engine.group.UsedTokens(0), 0);
    EXPECT_EQ(engine.group.ranks()[0].resident_tokens(), 0);
    for (ServeRequestIndex i = 0; i < 100; ++i) {
      EXPECT_EQ(first[i], 1);
      EXPECT_EQ(ended[i], 1);
    }
  }
}

TEST(RankMemoryTest, ALevelBoundsThePromptTokensOfAStep) {
  Engine engine({.cost = {{.c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0}}, .kv_tokens = 100'000}, 32);
  engine.Submit(RequestOf(Text(1, 14), 10));
  EXPECT_DOUBLE_EQ(engine.Step().seconds, 1.1);
  engine.Submit(RequestOf(Text(100, 30), 26));
  EXPECT_DOUBLE_EQ(engine.Step(1.065).seconds, 1.06) << "one decode, and five tokens of the second prompt";
  EXPECT_EQ(engine.group.ranks()[0].prompts[0].left, 21);
  EXPECT_DOUBLE_EQ(engine.Step(1.015).seconds, 1.01) << "decodes go on";
  EXPECT_DOUBLE_EQ(engine.Step().seconds, 1.22);
}

// --- rules of other routers ---

class DirectDispatchersTest : public ::testing::Test {
 protected:
  DirectDispatchersTest()
      : group_({.ranks = 2,
                .slots = 64,
                .cost = {kEightBillionCost},
                .barrier = false,
                .longest_output = 10,
                .kv_tokens = 200'000},
               &requests_) {}
  void Make(const std::string& rule) { dispatcher_ = MakeDirectDispatcher(rule, 2048, &group_, &requests_); }
  // Sends a request with this prompt; returns its rank.
  int32_t Send(const Tokens& prompt) {
    requests_.push_back(RequestOf(prompt + Text(1'000 + requests_.size(), 10), prompt.size()));
    const size_t before = group_.ranks()[0].prompts.size();
    dispatcher_->Arrived(static_cast<ServeRequestIndex>(requests_.size()) - 1);
    return group_.ranks()[0].prompts.size() > before ? 0 : 1;
  }
  // Until the rank is idle.
  void Run(int32_t rank) {
    while (!group_.ranks()[static_cast<size_t>(rank)].idle()) {
      std::vector<RankOrder> orders;
      dispatcher_->Order(rank, orders);
      group_.Begin(rank, orders);
      dispatcher_->Stepped(rank, group_.End(rank, 0), 0);
    }
  }
  void Finish(int32_t rank, ServeRequestIndex request) {
    ServeStep step;
    step.first_tokens = {{request, rank}};
    step.ended = {{request, rank}};
    dispatcher_->Stepped(rank, step, 0);
  }

  std::vector<ServeRequest> requests_;
  ServeGroup group_;
  std::unique_ptr<EngineDispatcher> dispatcher_;
};

TEST_F(DirectDispatchersTest, LeastRequestsOrTokens) {
  for (const char* rule : {"direct_least_requests", "router_power_of_two", "direct_vllm"}) {
    Make(rule);
    EXPECT_NE(Send(Text(1, 64)), Send(Text(1, 64))) << rule;
    Finish(1, group_.ranks()[1].prompts.back().request);
    EXPECT_EQ(Send(Text(1, 64)), 1) << rule;
  }
  Make("least_work");
  EXPECT_EQ(dispatcher_, nullptr) << "unknown";
}

TEST_F(DirectDispatchersTest, LeastTokensAtArrivalOrSinceThePoll) {
  for (const char* rule : {"direct_least_tokens", "smg_least_load"}) {
    SCOPED_TRACE(rule);
    Make(rule);
    const int32_t large = Send(Text(1, 6'400));
    EXPECT_NE(Send(Text(2, 64)), large);
    EXPECT_NE(Send(Text(1, 6'400)), large);
    EXPECT_EQ(Send(Text(3, 64)), large);
  }
}

TEST_F(DirectDispatchersTest, TensorRtLlmEvensRequestsFirst) {
  Make("direct_trtllm");
  EXPECT_EQ(Send(Text(1, 640)), 0);
  EXPECT_EQ(Send(Text(2, 64)), 1);
  EXPECT_EQ(Send(Text(3, 64)), 1) << "fewest tokens";
  EXPECT_EQ(Send(Text(4, 64)), 0) << "fewest requests";
}

TEST_F(DirectDispatchersTest, SmgGoesWhereThePromptMatchesUntilTheRankHasManyMoreRequests) {
  Make("smg_cache_aware");
  EXPECT_EQ(Send(Text(1, 640)), 0);
  EXPECT_EQ(Send(Text(2, 64)), 1);
  EXPECT_EQ(Send(Text(3, 64)), 0);
  EXPECT_EQ(Send(Text(1, 192) + Text(4, 500)), 1) << "28 % match";
  for (int i = 2; i < 131; ++i) EXPECT_EQ(Send(Text(1, 640)), 0) << i;
  EXPECT_EQ(Send(Text(1, 640)), 1) << "131 and 2 are 64 from the mean";
  EXPECT_EQ(Send(Text(1, 640)), 1) << "now both have the prefix";
}

TEST_F(DirectDispatchersTest, LlmDStaysWithThePrefixUntilThePromptsThereAreLong) {
  Make("llmd_prefix_load");
  EXPECT_EQ(Send(Text(1, 640)), 0);
  EXPECT_EQ(Send(Text(2, 64)), 1);
  EXPECT_EQ(Send(Text(1, 640)), 0);
  EXPECT_EQ(Send(Text(1, 320) + Text(3, 320)), 1) << "half is not enough";
  EXPECT_EQ(Send(Text(4, 290'000)), 1);
  EXPECT_EQ(Send(Text(4, 290'000)), 0) << "18 seconds of prompts";
}

TEST_F(DirectDispatchersTest, DynamoWeighsPromptBlocksAndActiveBlocks) {
  Make("dynamo_kv");
  EXPECT_EQ(Send(Text(1, 160)), 0);
  EXPECT_EQ(Send(Text(1, 160)), 1) << "20 blocks more to compute than 10, shared or not";
  Finish(0, 0);
  EXPECT_EQ(Send(Text(2, 160)), 0) << "nothing is active there";
  // Rank 1's cache has the prompt.
  Run(1);
  Finish(0, 2);
  EXPECT_EQ(Send(Text(1, 160)), 1);
}

TEST_F(DirectDispatchersTest, KvAwareGoesWhereMostIsCached) {
  Make("router_kv_aware");
  EXPECT_EQ(Send(Text(1, 160)), 0);
  EXPECT_EQ(Send(Text(1, 160)), 1) << "not computed yet";
  Run(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Send(Text(1, 160)), 1) << "whatever the load";
  EXPECT_EQ(Send(Text(2, 160)), 0);
}

}  // namespace
}  // namespace bfio::sim
