// Prompt tokens that fit below a step-time level, against counting them one by one, and the level that meets
// an objective, against every number of steps.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/prompt_work.h"
#include "gtest/gtest.h"
#include "router/core/prefill/prefill_planner.h"
#include "tests/unit/router/core/prefill/prefill_case.h"

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

// --- work conservation ---

// Work conservation of the prompt planner, in the sense of "Throughput-Optimal Scheduling Algorithms for LLM
// Inference and AI Agents": a batch has b tokens whenever b are available. The planner's b is the tokens that
// end by a step time, the level, so there are two parts: the ranks compute all that the level holds, and
// behind a backlog the level is the highest. Properties on random groups.

// A step takes at most three times the decodes' time, or the decodes' time plus two mean prompts.
constexpr double kMostRise = 2;

struct RandomGroup {
  explicit RandomGroup(uint64_t seed, int64_t most_waiting, int64_t most_slots) {
    Rng rng(seed);
    const double long_prompts = 20 + static_cast<double>(rng.Below(4000));
    const auto length = [&] { return 1 + static_cast<int64_t>(2 * long_prompts * rng.Uniform()); };
    for (uint64_t g = 1 + rng.Below(12); g > 0; --g) {
      PrefillRank& rank = ranks.emplace_back();
      rank.cost.c_s = 0.002 + 0.02 * rng.Uniform();
      rank.cost.a_s_per_token = 2e-5 * (1 + rng.Uniform());
      rank.cost.b0_tokens = rng.Below(2) == 0 ? 0 : static_cast<int64_t>(rng.Below(300));
      rank.cost.k1_s_per_pair = rng.Below(2) == 0 ? 0 : 2e-9 * rng.Uniform();
      rank.cost.k2_s_per_token = 1e-7 * rng.Uniform();
      rank.decodes = 1 + static_cast<int64_t>(rng.Below(200));
      rank.decode_context = 800.0 * static_cast<double>(rank.decodes) * rng.Uniform();
      rank.free_slots = static_cast<int64_t>(rng.Below(most_slots + 1));
      for (uint64_t i = rng.Below(3); i > 0; --i) rank.Add({length(), 0}, kNoObjective);
      decodes += rank.decodes;
      least_s = std::max(least_s, WorkOf(rank).SecondsWithoutPrompts());
    }
    for (uint64_t i = rng.Below(most_waiting + 1); i > 0; --i) waiting.push_back({length(), rng.Uniform()});
    traffic.mean_prompt_tokens = long_prompts;
    traffic.mean_prefill_s = long_prompts * 3e-5;
    traffic.mean_output_tokens = 1 + static_cast<double>(rng.Below(500));
    traffic.step_s = least_s * (1 + rng.Uniform());
    traffic.arrivals_per_s = 2 * static_cast<double>(ranks.size()) * rng.Uniform() / traffic.mean_prefill_s;
    traffic.lag_steps = static_cast<int32_t>(rng.Below(2));
  }

  void Carry(const PrefillDecision& decision) {
    for (const auto& [index, rank] : decision.bindings) {
      ranks[rank].Add({waiting[index].tokens, 0}, kNoObjective);
      --ranks[rank].free_slots;
    }
  }

  std::vector<PrefillRank> ranks;
  std::vector<WaitingPrompt> waiting;
  PrefillTraffic traffic;
  int64_t decodes = 0;
  double least_s = 0;
};

// Prompt tokens that a rank with an unlimited number of them computes by this time, without attention.
double Holds(const PrefillRank& rank, double level_s) {
  const double over_s = level_s - WorkOf(rank).SecondsWithoutPrompts();
  return over_s < 0 ? 0 : static_cast<double>(WorkOf(rank).FreeRows()) + over_s / rank.cost.a_s_per_token;
}

TEST(WorkConservation, NoRankRunsDryWhileThePoolHasPromptsForIt) {
  int ranks = 0, above = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    RandomGroup group(seed, 60, 6);
    const PrefillDecision decision = PlanPrefill(group.ranks, group.waiting, group.traffic, {}, {});
    group.Carry(decision);
    if (decision.bindings.size() == group.waiting.size()) continue;
    for (const PrefillRank& rank : group.ranks) {
      if (rank.free_slots == 0) continue;
      ++ranks;
      if (decision.level_s > group.least_s) ++above;
      const RankWork work = WorkOf(rank);
      EXPECT_GE(static_cast<double>(work.PromptTokens()), (1 - 1e-9) * Holds(rank, decision.level_s)) << seed;
    }
  }
  EXPECT_GT(ranks, 5000);
  EXPECT_GT(above, 1000) << "levels that do not rise say little";
}

// Where more prompts wait than all ranks take, none can be computed for less later, so steps are as long as
// they may be.
TEST(WorkConservation, BehindABacklogStepsAreAsLongAsTheyMayBe) {
  int checked = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    RandomGroup group(seed, 2000, 2000);
    const PrefillDecision decision = PlanPrefill(group.ranks, group.waiting, group.traffic, {}, {});
    group.Carry(decision);
    // As many would wait if the level were higher.
    if (group.waiting.size() < 2 * decision.bindings.size() + 2 * group.ranks.size()) continue;
    if (std::any_of(group.ranks.begin(), group.ranks.end(),
                    [](const PrefillRank& rank) { return rank.free_slots == 0; })) {
      continue;
    }
    ++checked;
    const double most_s = group.least_s + kMostRise * std::max(group.traffic.mean_prefill_s, group.least_s);
    EXPECT_GE(decision.level_s, most_s * (1 - 1e-9)) << seed;
  }
  EXPECT_GT(checked, 100);
}

}  // namespace
}  // namespace bfio::core
