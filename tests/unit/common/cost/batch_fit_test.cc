// The online fit of a batch's cost against known costs.
#include "common/cost/batch_fit.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/base/rng.h"
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
  BatchFit fit;
  for (int i = 0; i < batches; ++i) {
    const BatchLoad drawn = load(rng);
    fit.Add(drawn, seconds(drawn) * (1 + noise * rng.Normal()));
  }
  return fit.cost();
}

TEST(BatchFitTest, FindsFloorSlopeKneeAndContextCost) {
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
TEST(BatchFitTest, ALineBelowTheOriginBecomesOneThroughIt) {
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

// With short prompts noise must not be fitted as a cost of pairs: a prompt of 30,000 tokens has 4.5e8 of
// them.
TEST(BatchFitTest, FindsTheCostOfPromptsAttentionOnlyWhereLongPromptsShowIt) {
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
TEST(BatchFitTest, WhatTheContextExplainsIsNotTakenForTheTokens) {
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

TEST(BatchFitTest, UndeterminedCostsAreAbsent) {
  BatchFit fit;
  EXPECT_FALSE(fit.cost().has_value());
  for (int i = 0; i < 1000; ++i) fit.Add({.tokens = 64}, 0.05);
  EXPECT_FALSE(fit.cost().has_value()) << "batches of one size";
  fit.Add({.tokens = 0}, 1);
  fit.Add({.tokens = 5}, std::nan(""));
  fit.Add({.tokens = 5}, -1);
  EXPECT_FALSE(fit.cost().has_value());
}

}  // namespace
}  // namespace bfio
