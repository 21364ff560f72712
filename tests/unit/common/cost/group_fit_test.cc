// The online fit of the cost of steps against known costs: of one rank, and of groups.
#include "common/cost/group_fit.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/batch_time.h"
#include "common/cost/prompt_work.h"
#include "common/cost/step_time.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

BatchLoad RandomLoad(Rng& rng) {
  BatchLoad load;
  for (uint64_t i = rng.Below(60); i > 0; --i) load.AddDecode(static_cast<int64_t>(rng.Below(2000)));
  if (rng.Below(3) == 0) load.AddPrefill(1 + static_cast<int64_t>(rng.Below(450)), 0);
  return load;
}

// Prompts in chunks, whose attention grows with the tokens computed before.
BatchLoad RandomChunkLoad(Rng& rng, uint64_t longest) {
  BatchLoad load = RandomLoad(rng);
  load.AddPrefill(1 + static_cast<int64_t>(rng.Below(500)), static_cast<int64_t>(rng.Below(longest)));
  return load;
}

// The cost fitted to `batches` random loads, whose times have relative noise.
template <typename Load, typename Seconds>
std::optional<BatchCost> Fitted(uint64_t seed, int batches, double noise, Load load, Seconds seconds) {
  Rng rng(seed);
  GroupFit fit;
  for (int i = 0; i < batches; ++i) {
    const BatchLoad drawn = load(rng);
    fit.Add(drawn, seconds(drawn) * (1 + noise * rng.Normal()));
  }
  return fit.cost() ? std::optional(fit.cost()->batch) : std::nullopt;
}

TEST(GroupFitTest, FindsFloorSlopeKneeAndContextCost) {
  for (const int64_t b0 : {0, 64, 128}) {
    SCOPED_TRACE(b0);
    BatchCost cost;
    cost.b0_tokens = b0;
    cost.k2_s_per_token = 1e-7;
    int batch = 0;
    // Now and then a batch takes ten times as long.
    const auto found = Fitted(5, 1500, 0.02, RandomLoad, [&](const BatchLoad& load) {
      return cost.Seconds(load) * (batch++ % 200 == 199 ? 10 : 1);
    });
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->b0_tokens, b0);
    for (const int64_t tokens : {1, 60, 300, 500, 1000}) {
      EXPECT_NEAR(found->Seconds(tokens) / cost.Seconds(tokens), 1, 0.06) << tokens;
    }
  }
}

// The true knee is beyond those that are tried, so the constant of the best line is negative.
TEST(GroupFitTest, ALineBelowTheOriginBecomesOneThroughIt) {
  const auto seconds = [](int64_t tokens) {
    return 2e-3 + 5e-5 * static_cast<double>(std::max<int64_t>(0, tokens - 512));
  };
  const auto found = Fitted(
      5, 1500, 0, [](Rng& rng) { return BatchLoad{.tokens = 520 + static_cast<int64_t>(rng.Below(1529))}; },
      [&](const BatchLoad& load) { return seconds(load.tokens); });
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(found->c_s, 0);
  double bias = 0, sum = 0;
  for (int64_t tokens = 520; tokens <= 2048; ++tokens) {
    bias += found->Seconds(tokens) - seconds(tokens);
    sum += seconds(tokens);
  }
  EXPECT_LT(std::abs(bias), 0.1 * sum);
}

// With short prompts noise must not be fitted as a cost of pairs: 30,000 tokens have 4.5e8 of them.
TEST(GroupFitTest, FindsTheCostOfPromptsAttentionOnlyWhereLongPromptsShowIt) {
  BatchCost cost;
  cost.k2_s_per_token = 1e-7;
  const auto seconds = [&](const BatchLoad& load) { return cost.Seconds(load); };
  int with = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const auto found = Fitted(
        seed, 300, 0.05, [](Rng& rng) { return RandomChunkLoad(rng, 300); }, seconds);
    ASSERT_TRUE(found.has_value());
    with += found->k1_s_per_pair > 0 ? 1 : 0;
  }
  EXPECT_LE(with, 1);
  cost.k1_s_per_pair = 5e-9;
  const auto found = Fitted(
      6, 1500, 0.02, [](Rng& rng) { return RandomChunkLoad(rng, 30'000); }, seconds);
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->k1_s_per_pair, 5e-9, 5e-10);
  EXPECT_NEAR(found->a_s_per_token, cost.a_s_per_token, 0.05 * cost.a_s_per_token);
  // A chunk at the end of a prompt of 30,000 tokens takes 75 ms more than one at its beginning.
  BatchLoad late;
  late.AddPrefill(500, 30'000);
  EXPECT_NEAR(found->Seconds(late), cost.Seconds(late), 0.05 * cost.Seconds(late));
}

// The more requests, the younger they are. So the number of tokens alone explains little, and its fitted
// slope next to that of the context is as often negative as positive.
TEST(GroupFitTest, WhatTheContextExplainsIsNotTakenForTheTokens) {
  constexpr double kContextCost = 3e-5;
  for (const double slope : {-1e-5, -1e-6, 0.0}) {
    SCOPED_TRACE(slope);
    const auto load = [](Rng& rng) {
      const int64_t tokens = 20 + static_cast<int64_t>(rng.Below(12));
      const double context = static_cast<double>(tokens) * (50 + static_cast<double>(rng.Below(60)));
      return BatchLoad{.tokens = tokens, .decode_context = context};
    };
    const auto found = Fitted(7, 1500, 0.02, load, [&](const BatchLoad& drawn) {
      return 0.05 + slope * static_cast<double>(drawn.tokens) + kContextCost * drawn.decode_context;
    });
    ASSERT_TRUE(found.has_value());
    EXPECT_NEAR(found->k2_s_per_token, kContextCost, 0.1 * kContextCost);
    EXPECT_GT(found->a_s_per_token, 0) << "planners divide by it";
    EXPECT_LT(found->a_s_per_token, 1e-4);
  }
}

TEST(GroupFitTest, UndeterminedCostsAreAbsent) {
  GroupFit fit;
  EXPECT_FALSE(fit.cost().has_value());
  for (int i = 0; i < 1000; ++i) fit.Add({.tokens = 64}, 0.05);
  EXPECT_FALSE(fit.cost().has_value()) << "batches of one size";
  fit.Add({.tokens = 0}, 1);
  fit.Add({.tokens = 5}, std::nan(""));
  fit.Add({.tokens = 5}, -1);
  EXPECT_FALSE(fit.cost().has_value());
}

// Ranks that decode, and compute prompts in chunks: at once, or together every few steps.
class Traffic {
 public:
  explicit Traffic(uint64_t seed) : rng_(seed), ranks_(2 + rng_.Below(11)) {
    prompt_ = 200 + 1500 * rng_.Uniform();
    output_ = 50 + 150 * rng_.Uniform();
    per_step_ = (8 + 40 * rng_.Uniform()) / output_;
    wave_ = rng_.Below(2) == 0 ? 1 : 2 + static_cast<int64_t>(rng_.Below(10));
    for (int step = 0; step < 500; ++step) Next();
  }

  std::vector<BatchLoad> Next() {
    std::vector<BatchLoad> loads;
    ++step_;
    for (Rank& rank : ranks_) {
      for (; rank.next < static_cast<double>(step_); rank.next += rng_.Exponential() / per_step_)
        rank.prompts.push_back({1 + static_cast<int64_t>(prompt_ * rng_.Exponential()), 0});
      if (step_ % wave_ == 0) rank.released = rank.prompts.size();
      std::erase_if(rank.decodes, [&](const auto& decode) { return decode.second < step_; });
      BatchLoad& load = loads.emplace_back();
      for (auto& [context, last_step] : rank.decodes) load.AddDecode(context++);
      while (rank.released > 0 && load.tokens < kBudget) {
        PromptLeft& prompt = rank.prompts.front();
        const int64_t chunk = std::min(kBudget - load.tokens, prompt.left);
        load.AddPrefill(chunk, prompt.done);
        prompt.left -= chunk;
        prompt.done += chunk;
        if (prompt.left > 0) continue;
        rank.decodes.emplace_back(prompt.done + 1,
                                  step_ + static_cast<int64_t>(output_ * rng_.Exponential()));
        rank.prompts.pop_front();
        --rank.released;
      }
    }
    return loads;
  }

 private:
  static constexpr int64_t kBudget = 1024;
  struct Rank {
    std::deque<PromptLeft> prompts;
    size_t released = 0;
    // Context and last step.
    std::vector<std::pair<int64_t, int64_t>> decodes;
    double next = 0;
  };

  Rng rng_;
  std::vector<Rank> ranks_;
  double prompt_ = 0, output_ = 0, per_step_ = 0;
  int64_t wave_ = 1, step_ = 0;
};

GroupCost DrawnCost(Rng& rng) {
  GroupCost cost;
  cost.batch = {.c_s = 5e-3 + 45e-3 * rng.Uniform(),
                .a_s_per_token = 1e-5 * std::exp(3.4 * rng.Uniform()),
                .b0_tokens = static_cast<int64_t>(rng.Below(200)),
                .k1_s_per_pair = rng.Below(2) == 0 ? 0 : 2e-9 * rng.Uniform(),
                .k2_s_per_token = 2e-8 + 1e-7 * rng.Uniform()};
  cost.terms = {.padded = rng.Below(2) == 0,
                .prompt_s = rng.Below(4) == 0 ? 0 : 10e-3 * rng.Uniform(),
                .eager_s = rng.Below(2) == 0 ? 0 : 6e-3 * rng.Uniform()};
  return cost;
}

constexpr double kNoise = 0.05;

// Whether ranks are timed, one in each step, or whole steps only.
class GroupFitOf : public ::testing::TestWithParam<bool> {
 protected:
  // Adds steps with noise, and counts those with prompts, and those whose ranks' rows differ by a
  // tenth where rows cost something.
  void Add(int steps, Traffic& traffic, const GroupCost& cost, GroupFit& fit) {
    for (int step = 0; step < steps; ++step) {
      const std::vector<BatchLoad> loads = traffic.Next();
      const StepMode mode = cost.terms.ModeOf(loads);
      const std::optional<size_t> rank =
          GetParam() ? std::optional(static_cast<size_t>(step) % loads.size()) : std::nullopt;
      const double seconds = rank ? cost.RankSeconds(loads[*rank], mode) : cost.Seconds(loads);
      fit.Add(loads, seconds * (1 + kNoise * noise_.Normal()), rank);
      const auto [least, most] = std::minmax_element(
          loads.begin(), loads.end(), [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
      prompts_ += mode.prompts ? 1 : 0;
      unequal_ += !mode.eager && 10 * least->tokens < 9 * most->tokens && most->tokens > cost.batch.b0_tokens;
    }
  }

  Rng noise_{11};
  int prompts_ = 0, unequal_ = 0;
};

TEST_P(GroupFitOf, PredictsTheStepsOfDrawnCostsAndTellsPaddingWhereItShows) {
  constexpr int kSteps = 2000, kCosts = 20;
  int shows = 0;
  for (uint64_t seed = 1; seed <= kCosts; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const GroupCost cost = DrawnCost(rng);
    Traffic traffic(seed);
    GroupFit fit;
    prompts_ = unequal_ = 0;
    Add(kSteps, traffic, cost, fit);
    ASSERT_TRUE(fit.cost().has_value());
    EXPECT_NEAR(fit.predicted_ratio(), 1, 0.02);
    std::vector<double> errors;
    for (int step = 0; step < 1000; ++step) {
      const std::vector<BatchLoad> loads = traffic.Next();
      errors.push_back(std::abs(fit.cost()->Seconds(loads) / cost.Seconds(loads) - 1));
    }
    std::nth_element(errors.begin(), errors.begin() + 900, errors.end());
    EXPECT_LT(errors[900], 0.03);
    EXPECT_EQ(fit.cost()->terms.padded, fit.padding_identified() && cost.terms.padded);
    const bool show = unequal_ >= kSteps / 20 && prompts_ >= kSteps / 10 && prompts_ <= kSteps * 9 / 10;
    shows += show ? 1 : 0;
    EXPECT_TRUE(fit.padding_identified() || !show || !GetParam());
  }
  EXPECT_GE(shows, kCosts / 5);
}

// An engine that restarts without graphs.
TEST_P(GroupFitOf, FollowsAChangeOfPaddingAndPrice) {
  Rng rng(3);
  Traffic traffic(3);
  GroupFit fit;
  GroupCost cost{{.c_s = 10e-3, .a_s_per_token = 5e-5, .b0_tokens = 32, .k2_s_per_token = 5e-7}};
  for (const bool padded : {true, false}) {
    cost.terms = {.padded = padded, .prompt_s = padded ? 4e-3 : 0};
    Add(padded ? 4'000 : 20'000, traffic, cost, fit);
    EXPECT_TRUE(fit.padding_identified());
    EXPECT_EQ(fit.cost()->terms.padded, padded);
    EXPECT_NEAR(fit.cost()->terms.prompt_s, cost.terms.prompt_s, 0.8e-3);
  }
}

// Equal ranks, with prompts in all steps: neither padding nor the price shows.
TEST_P(GroupFitOf, WhatIsNotIdentifiedIsTheDefaults) {
  Rng rng(5);
  GroupFit fit;
  GroupCost cost = DrawnCost(rng);
  cost.terms = {.padded = true, .prompt_s = 5e-3};
  for (int step = 0; step < 3'000; ++step) {
    const std::vector<BatchLoad> loads(4, RandomChunkLoad(rng, 300));
    fit.Add(loads, cost.Seconds(loads) * (1 + kNoise * rng.Normal()),
            GetParam() ? std::optional<size_t>(0) : std::nullopt);
  }
  EXPECT_FALSE(fit.padding_identified());
  EXPECT_EQ(fit.cost()->terms, GroupTerms());
  EXPECT_NEAR(fit.predicted_ratio(), 1, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Times, GroupFitOf, ::testing::Bool(), [](const auto& info) {
  return info.param ? std::string("Ranks") : std::string("Steps");
});

// --- the papers' costs ---

// The time of a batch: the papers' constants, long contexts.

TEST(BatchTimeTest, ThePapersConstants) {
  const BatchCost llama;
  EXPECT_NEAR(llama.Seconds(512), 0.1799, 1e-9);
  EXPECT_NEAR(llama.Capacity(512), 2846, 0.5);
  EXPECT_NEAR(llama.Capacity(512) / 200, 14.230, 5e-4) << "requests of 100 + 100 tokens per second";
  EXPECT_NEAR(llama.Seconds(64), 45.5e-3, 1e-12);
  EXPECT_NEAR(llama.Seconds(1), 45.5e-3, 1e-12);
  EXPECT_EQ(llama.Seconds(0), 0);
  // The paper's third version: CodeLlama-34B, with a staircase.
  const BatchCost code = {
      .c_s = 11.28e-3, .a_s_per_token = 35.47e-3 / 128, .b0_tokens = 0, .granule_tokens = 128};
  EXPECT_NEAR(code.Seconds(512), 0.15316, 1e-9);
  EXPECT_NEAR(code.Seconds(385), 0.15316, 1e-9) << "the same stair";
  EXPECT_NEAR(code.Capacity(512) / 200, 16.715, 1e-3);
}

TEST(BatchTimeTest, LongContexts) {
  const BatchCost cost = {.k1_s_per_pair = 1e-6, .k2_s_per_token = 1e-5};
  BatchLoad load;
  load.AddPrefill(20, 1000);
  load.AddDecode(500);
  load.AddDecode(30);
  EXPECT_EQ(load.tokens, 22);
  EXPECT_NEAR(cost.Seconds(load), 45.5e-3 + 1e-6 * 20 * 1010 + 1e-5 * 530, 1e-12);
  // A prompt in chunks attends to as many pairs as in one piece.
  BatchLoad whole, pieces;
  whole.AddPrefill(700, 0);
  for (int64_t done = 0; done < 700; done += 100) pieces.AddPrefill(100, done);
  EXPECT_DOUBLE_EQ(whole.prefill_pairs, pieces.prefill_pairs);
  EXPECT_NEAR(LongContextLlama70B().k1_s_per_pair, 4.2e-9, 1e-10);
  EXPECT_NEAR(LongContextLlama70B().k2_s_per_token, 8.04e-8, 1e-9);
}

TEST(StepCostTest, DefaultsAreThePapersConstantsAndPrefillTokensAddTheirCost) {
  const StepCost cost;
  EXPECT_NEAR(cost.c_s, (0.6e-3 * 72 + 35e-3) / 16, 1e-12);
  EXPECT_NEAR(cost.tl_s_per_token, 1.5 * 2 * 576 * 61e-6 / (1 << 20), 1e-12);
  EXPECT_DOUBLE_EQ(cost.StepSeconds(100000), 4.8875e-3 + 1.00525e-2);
  const StepCost all = {.c_s = 1, .tl_s_per_token = 0.5, .prefill_s_per_token = 0.25};
  EXPECT_DOUBLE_EQ(all.StepSeconds(2, 4), 3);
}

}  // namespace
}  // namespace bfio
