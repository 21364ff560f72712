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

// For any terms: at the level it may stop, and a little below it may not.
TEST(FillLevelTest, FindsALevelAtWhichItMayStopAndBelowWhichItMayNot) {
  int raised = 0, paid = 0, for_own = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const RandomRanks random(seed);
    Rng rng = Rng(seed).Fork(2);
    LevelTerms terms;
    std::vector<int64_t> own;
    int64_t all = 0;
    for (const RankWork& rank : random.ranks) {
      terms.least_s = std::max(terms.least_s, rank.SecondsWithoutPrompts());
      all += rank.PromptTokens();
      own.push_back(static_cast<int64_t>(rng.Uniform() * static_cast<double>(rank.PromptTokens())));
    }
    terms.wanted_tokens = static_cast<double>(all) * rng.Uniform();
    if (rng.Below(2) == 0) terms.own_tokens = own;
    if (rng.Below(2) == 0) terms.least_sharing = 6 * rng.Uniform();
    if (rng.Below(2) == 0) terms.paying_sharing = 6 * rng.Uniform();
    const auto may_stop = [&](double level_s) {
      int64_t tokens = 0;
      double sharing = 0;
      bool each = true;
      for (size_t g = 0; g < random.ranks.size(); ++g) {
        const int64_t here = TokensWithin(random.ranks[g], level_s);
        tokens += here;
        sharing += SharingAt(random.ranks[g], level_s);
        each = each && (terms.own_tokens.empty() || here >= own[g]);
      }
      if (sharing >= terms.paying_sharing) return false;
      return sharing < terms.least_sharing || (each && static_cast<double>(tokens) >= terms.wanted_tokens);
    };
    const Level level = FillLevel(random.ranks, terms);
    int64_t tokens = 0;
    for (const RankWork& rank : random.ranks) tokens += TokensWithin(rank, level.seconds);
    EXPECT_EQ(level.tokens, tokens) << seed;
    EXPECT_TRUE(may_stop(level.seconds)) << seed;
    if (level.seconds == terms.least_s) continue;
    ++raised;
    EXPECT_GT(level.seconds, terms.least_s) << seed;
    EXPECT_FALSE(may_stop(level.seconds - 1e-11)) << seed << ": a lower one does";
    paid += static_cast<double>(tokens) > terms.wanted_tokens + 100 ? 1 : 0;
    for_own += static_cast<double>(tokens) > terms.wanted_tokens && !terms.own_tokens.empty() ? 1 : 0;
  }
  EXPECT_GT(raised, 300);
  EXPECT_GT(paid, 50);
  EXPECT_GT(for_own, 50);
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
