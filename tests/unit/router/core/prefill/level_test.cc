// Prompt tokens that fit below a step-time level, against counting them one by one; FillLevel's choice
// against every level.
#include "router/core/prefill/level.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::core {
namespace {

BatchCost CostOf(double c, double a, int64_t b0, double k1, double k2) {
  return {.c_s = c, .a_s_per_token = a, .b0_tokens = b0, .k1_s_per_pair = k1, .k2_s_per_token = k2};
}

// Time of a step with the first `tokens` prompt tokens, computed with the cost model itself.
double SecondsWith(const RankWork& rank, int64_t tokens) {
  BatchLoad load = {.tokens = rank.decodes, .decode_context = rank.decode_context};
  for (const PromptLeft& prompt : rank.prompts) {
    const int64_t chunk = std::min(tokens, prompt.left);
    if (chunk > 0) load.AddPrefill(chunk, prompt.done);
    tokens -= chunk;
  }
  return rank.cost.Seconds(load);
}

int64_t CountWithin(const RankWork& rank, double level_s) {
  int64_t tokens = 0;
  while (tokens < rank.PromptTokens() && SecondsWith(rank, tokens + 1) <= level_s) ++tokens;
  return tokens;
}

struct RandomRanks {
  explicit RandomRanks(uint64_t seed) {
    Rng rng(seed);
    const size_t count = 1 + rng.Below(5);
    prompts.resize(count);
    for (size_t g = 0; g < count; ++g) {
      for (uint64_t i = rng.Below(4); i > 0; --i) {
        prompts[g].push_back(
            {1 + static_cast<int64_t>(rng.Below(300)), static_cast<int64_t>(rng.Below(500))});
      }
      RankWork& rank = ranks.emplace_back();
      rank.cost =
          CostOf(1e-3 * (1 + rng.Uniform()), 1e-5 * (1 + rng.Uniform()), static_cast<int64_t>(rng.Below(200)),
                 rng.Below(2) == 0 ? 0 : 1e-8 * rng.Uniform(), 1e-7 * rng.Uniform());
      rank.decodes = 1 + static_cast<int64_t>(rng.Below(150));
      rank.decode_context = static_cast<double>(rng.Below(20000));
      rank.prompts = prompts[g];
    }
  }
  std::vector<std::vector<PromptLeft>> prompts;
  std::vector<RankWork> ranks;
};

TEST(TokensWithinTest, EqualsCountingOneByOne) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const RandomRanks random(seed);
    Rng rng = Rng(seed).Fork(1);
    for (const RankWork& rank : random.ranks) {
      const double level = rank.SecondsWithoutPrompts() + 4e-3 * (rng.Uniform() - 0.1);
      const int64_t tokens = TokensWithin(rank, level);
      // Rounding may affect the last token: the level computed from a number of tokens must give that number
      // back.
      EXPECT_NEAR(static_cast<double>(tokens), static_cast<double>(CountWithin(rank, level)), 1) << seed;
      EXPECT_LE(SecondsWith(rank, tokens), std::max(level, rank.SecondsWithoutPrompts()) + 1e-9) << seed;
    }
  }
}

TEST(TokensWithinTest, TheTimeOfANumberOfTokensGivesThatNumber) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const RandomRanks random(seed);
    for (const RankWork& rank : random.ranks) {
      // More rows than are free, so that every token takes time.
      for (int64_t tokens = rank.FreeRows() + 1; tokens <= rank.PromptTokens(); tokens += 37) {
        EXPECT_EQ(TokensWithin(rank, SecondsWith(rank, tokens)), tokens) << seed;
      }
    }
  }
}

TEST(TokensWithinTest, RowsBelowTheKneeCostNothing) {
  const std::vector<PromptLeft> prompts = {{1000, 0}};
  RankWork rank{CostOf(0.01, 1e-4, 64, 0, 0), 40, 0, prompts};
  EXPECT_EQ(TokensWithin(rank, 0.01), 24);
  EXPECT_EQ(TokensWithin(rank, 0.011), 34);
  EXPECT_EQ(TokensWithin(rank, 0.0099), 0);
  rank.decodes = 80;
  EXPECT_EQ(TokensWithin(rank, 0.01), 0) << "its decodes alone take longer";
}

// Compared with trying every number of steps.
TEST(LevelWithinTest, TheLowestLevelThatIsInTimeHalfAStepEarly) {
  int met = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Rng rng(seed);
    const double other = 0.01 * rng.Uniform(), least = other + 0.01 * rng.Uniform();
    const double work = 0.1 * rng.Uniform(), left = 0.3 * rng.Uniform();
    const double level = LevelWithin(other, least, work, left);
    double lowest = INFINITY;
    for (int n = 1; n < 10'000; ++n) {
      const double of_n = other + work / n, takes = n * std::max(least, of_n);
      if (takes + (n > 1 ? std::max(least, other) / 2 : 0) <= left) lowest = of_n;
    }
    if (std::isinf(level)) {
      EXPECT_GT(std::max(least, other + work), left) << seed << ": one step would do";
      continue;
    }
    ++met;
    const double steps = work / (level - other);
    EXPECT_LE(std::round(steps) * std::max(least, level), left + 1e-12) << seed;
    EXPECT_NEAR(steps, std::round(steps), 1e-6) << seed << ": whole steps";
    EXPECT_LE(level, lowest + 1e-12) << seed;
  }
  EXPECT_GT(met, 300);
}

TEST(FillLevelTest, EveryRankComputesItsOwnTokens) {
  int raised = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const RandomRanks random(seed);
    Rng rng = Rng(seed).Fork(3);
    double least = 0;
    std::vector<int64_t> own;
    for (const RankWork& rank : random.ranks) {
      least = std::max(least, rank.SecondsWithoutPrompts());
      own.push_back(static_cast<int64_t>(rng.Uniform() * static_cast<double>(rank.PromptTokens())));
    }
    const Level level = FillLevel(random.ranks, {.least_s = least, .own_tokens = own});
    bool all_below = true;
    for (size_t g = 0; g < own.size(); ++g) {
      const RankWork& rank = random.ranks[g];
      EXPECT_GE(TokensWithin(rank, level.seconds), own[g]) << seed;
      all_below = all_below && TokensWithin(rank, level.seconds - 1e-8) >= own[g];
    }
    if (level.seconds == least) continue;
    ++raised;
    EXPECT_FALSE(all_below) << seed << ": a lower one does";
  }
  EXPECT_GT(raised, 50);
}

TEST(FillLevelTest, FindsTheLowestLevelWithTheWantedTokens) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const RandomRanks random(seed);
    Rng rng = Rng(seed).Fork(2);
    double least = 0;
    int64_t all = 0;
    for (const RankWork& rank : random.ranks) {
      least = std::max(least, rank.SecondsWithoutPrompts());
      all += rank.PromptTokens();
    }
    const double wanted = static_cast<double>(all) * rng.Uniform();
    const Level level = FillLevel(random.ranks, {least, wanted, 0});
    EXPECT_GE(level.seconds, least);
    EXPECT_GE(static_cast<double>(level.tokens), wanted) << seed;
    if (level.seconds == least) continue;
    int64_t below = 0;
    for (const RankWork& rank : random.ranks) below += TokensWithin(rank, level.seconds - 1e-8);
    EXPECT_LT(static_cast<double>(below), wanted) << seed << ": a lower one does";
  }
}

TEST(FillLevelTest, NeverBelowTheSlowestRank) {
  const std::vector<PromptLeft> prompts = {{100, 0}};
  const BatchCost cost = CostOf(0.01, 1e-4, 0, 0, 1e-6);
  const std::vector<RankWork> ranks = {{cost, 10, 1000, prompts}, {cost, 50, 5000, {}}};
  const double slowest = ranks[1].SecondsWithoutPrompts();
  const Level level = FillLevel(ranks, {slowest, 1, 0});
  EXPECT_EQ(level.seconds, slowest);
  EXPECT_EQ(level.tokens, 80) << "what fits below the slowest rank is free, wanted or not";
}

// Three ranks with 100, 200 and 400 prompt tokens: once the first rank has none left, two ranks share each
// further rise.
TEST(FillLevelTest, StopsRisingWhenTooFewShareTheRise) {
  const std::vector<PromptLeft> small = {{100, 0}}, middle = {{200, 0}}, large = {{400, 0}};
  const BatchCost cost = CostOf(0.01, 1e-4, 0, 0, 0);
  const std::vector<RankWork> ranks = {{cost, 10, 0, small}, {cost, 10, 0, middle}, {cost, 10, 0, large}};
  const double base = ranks[0].SecondsWithoutPrompts();
  EXPECT_NEAR(FillLevel(ranks, {base, 1e9, 3}).seconds, base + 100e-4, 1e-9);
  EXPECT_NEAR(FillLevel(ranks, {base, 1e9, 2}).seconds, base + 200e-4, 1e-9);
  EXPECT_NEAR(FillLevel(ranks, {base, 1e9, 1}).seconds, base + 400e-4, 1e-9);
  EXPECT_EQ(FillLevel(ranks, {base, 1e9, 4}).seconds, base) << "there are not so many";
  EXPECT_NEAR(FillLevel(ranks, {base, 300, 1}).seconds, base + 100e-4, 1e-9) << "300 in all";
}

TEST(FillLevelTest, RisesBeyondTheWantedTokensWhereThatPays) {
  const std::vector<PromptLeft> small = {{100, 0}}, large = {{400, 0}};
  const BatchCost cost = CostOf(0.01, 1e-4, 0, 0, 0);
  const std::vector<RankWork> ranks = {{cost, 10, 0, small}, {cost, 10, 0, large}};
  const double base = ranks[0].SecondsWithoutPrompts();
  EXPECT_NEAR(FillLevel(ranks, {base, 2, 0, 3}).seconds, base + 1e-4, 1e-9) << "two cannot be three";
  EXPECT_NEAR(FillLevel(ranks, {base, 2, 0, 2}).seconds, base + 100e-4, 1e-9) << "as long as both share";
  EXPECT_NEAR(FillLevel(ranks, {base, 2, 0, 1}).seconds, base + 400e-4, 1e-9);
}

// A free row still takes the time of attention, which the slowest rank cannot absorb: the level rises for it,
// however few ranks share the rise.
TEST(FillLevelTest, RisesForAlmostFreeRows) {
  const std::vector<PromptLeft> prompt = {{1000, 2000}};
  const std::vector<RankWork> ranks = {{CostOf(0.01, 1e-4, 200, 1e-9, 0), 10, 0, prompt}};
  const double base = ranks[0].SecondsWithoutPrompts();
  EXPECT_EQ(TokensWithin(ranks[0], base), 0);
  EXPECT_GT(SharingAt(ranks[0], base), 40);
  const Level level = FillLevel(ranks, {base, 1000, 8});
  EXPECT_NEAR(static_cast<double>(level.tokens), 190, 1) << "up to the knee";
  EXPECT_LT(level.seconds, base + 1e-3);
}

TEST(SharingAtTest, IsOneAboveTheKneeAndZeroWithoutPrompts) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const RandomRanks random(seed);
    for (const RankWork& rank : random.ranks) {
      for (int64_t tokens = 0; tokens <= rank.PromptTokens(); tokens += 29) {
        const double sharing = SharingAt(rank, SecondsWith(rank, tokens));
        if (tokens >= rank.PromptTokens()) {
          EXPECT_EQ(sharing, 0) << seed;
        } else if (tokens > rank.FreeRows()) {
          EXPECT_EQ(sharing, 1) << seed;
        }
      }
      EXPECT_EQ(SharingAt(rank, rank.SecondsWithoutPrompts() - 1e-6), 0) << seed;
    }
  }
}

}  // namespace
}  // namespace bfio::core
