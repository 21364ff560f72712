// Work conservation of the prompt planner, in the sense of "Throughput-Optimal Scheduling Algorithms for LLM
// Inference and AI Agents": a batch has b tokens whenever b are available. The planner's b is the tokens that
// end by a step time, the level, so there are two parts: the ranks compute all that the level holds, and
// behind a backlog the level is the highest. Properties on random groups.
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
