// Prompt tokens that fit below a step-time level, against counting them one by one, and the level that meets
// an objective, against every number of steps.

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/prompt_work.h"
#include "gtest/gtest.h"
#include "router/core/prefill/prefill_planner.h"

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
      // More rows than are free, so that every token takes time.
      for (int64_t more = rank.FreeRows() + 1; more <= rank.PromptTokens(); more += 37)
        EXPECT_EQ(TokensWithin(rank, SecondsWith(rank, more)), more) << seed;
    }
  }
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

}  // namespace
}  // namespace bfio::core
