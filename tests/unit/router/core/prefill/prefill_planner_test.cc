// Plans for prompts: invariants on random groups, and decisions in cases small enough to compute by hand.
#include "router/core/prefill/prefill_planner.h"

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

BatchCost Cost() {
  return {.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 0, .k2_s_per_token = 1e-6};
}

PrefillTraffic Traffic() {
  return {.arrivals_per_s = 10,
          .mean_prompt_tokens = 200,
          .mean_prefill_s = 0.02,
          .mean_output_tokens = 100,
          .step_s = 0.012};
}

PrefillRank RankOf(int64_t decodes, double context, int64_t free_slots = 10,
                   std::vector<PromptLeft> prompts = {}) {
  return {.cost = Cost(),
          .decodes = decodes,
          .decode_context = context,
          .free_slots = free_slots,
          .prompts = std::move(prompts)};
}

std::vector<int32_t> WaitingOf(const PrefillDecision& decision) {
  std::vector<int32_t> indices;
  for (const auto& binding : decision.bindings) indices.push_back(binding.waiting);
  return indices;
}

double SlowestWithoutPrompts(const std::vector<PrefillRank>& ranks) {
  double slowest = 0;
  for (const PrefillRank& rank : ranks) {
    if (rank.decodes == 0) continue;
    slowest =
        std::max(slowest, RankWork{rank.cost, rank.decodes, rank.decode_context, {}}.SecondsWithoutPrompts());
  }
  return slowest;
}

TEST(PlanPrefillTest, SoundOnRandomGroups) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    std::vector<PrefillRank> ranks;
    int64_t free = 0, decodes = 0;
    for (uint64_t g = 1 + rng.Below(8); g > 0; --g) {
      std::vector<PromptLeft> prompts;
      for (uint64_t i = rng.Below(3); i > 0; --i) {
        prompts.push_back({1 + static_cast<int64_t>(rng.Below(2000)), static_cast<int64_t>(rng.Below(900))});
      }
      const auto rows = static_cast<int64_t>(rng.Below(60));
      ranks.push_back(
          RankOf(rows, 300.0 * static_cast<double>(rows), static_cast<int64_t>(rng.Below(5)), prompts));
      ranks.back().first_bound_for_s = prompts.empty() ? 0 : rng.Uniform();
      free += ranks.back().free_slots;
      decodes += rows;
    }
    std::vector<WaitingPrompt> waiting;
    for (uint64_t i = rng.Below(20); i > 0; --i) {
      waiting.push_back({1 + static_cast<int64_t>(rng.Below(5000)), rng.Uniform()});
    }
    const PrefillDecision decision = PlanPrefill(ranks, waiting, Traffic(), {});
    std::vector<int64_t> taken(ranks.size());
    std::set<int32_t> bound;
    for (const auto& binding : decision.bindings) {
      ASSERT_GE(binding.waiting, 0);
      ASSERT_LT(binding.waiting, std::ssize(waiting));
      ASSERT_GE(binding.rank, 0);
      ASSERT_LT(binding.rank, std::ssize(ranks));
      EXPECT_TRUE(bound.insert(binding.waiting).second) << "bound twice";
      EXPECT_LE(++taken[binding.rank], ranks[binding.rank].free_slots) << seed;
    }
    EXPECT_FALSE(std::isnan(decision.level_s));
    if (decodes == 0) {
      EXPECT_TRUE(std::isinf(decision.level_s));
    } else {
      EXPECT_GE(decision.level_s, SlowestWithoutPrompts(ranks)) << "free time is left unused";
      EXPECT_TRUE(std::isfinite(decision.level_s));
    }
  }
}

TEST(PlanPrefillTest, WithoutDecodesThereIsNoLevel) {
  const std::vector<WaitingPrompt> waiting = {{1000, 0}};
  const PrefillDecision decision = PlanPrefill({{RankOf(0, 0), RankOf(0, 0)}}, waiting, Traffic(), {});
  EXPECT_THAT(WaitingOf(decision), ElementsAre(0));
  EXPECT_TRUE(std::isinf(decision.level_s));
}

TEST(PlanPrefillTest, APromptStaysInThePoolWhileEveryRankHasOne) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{1500, 0}}),
                                          RankOf(20, 2000, 10, {{1500, 0}})};
  const std::vector<WaitingPrompt> waiting = {{100, 0.01}};
  EXPECT_THAT(WaitingOf(PlanPrefill(ranks, waiting, Traffic(), {})), ElementsAre());
}

TEST(PlanPrefillTest, TheLongestGoesToTheLeastLoadedAndNoneToTheSlowest) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 9000), RankOf(20, 1000), RankOf(20, 5000)};
  const std::vector<WaitingPrompt> waiting = {{1000, 0.1}, {2000, 0.1}};
  const PrefillDecision decision = PlanPrefill(ranks, waiting, Traffic(), {});
  ASSERT_EQ(decision.bindings.size(), 2U);
  for (const auto& [index, rank] : decision.bindings) EXPECT_EQ(rank, index == 1 ? 1 : 2);
}

TEST(PlanPrefillTest, ARankThatGrowsFasterIsMoreLoaded) {
  // 60 residents with 6,000 tokens hold less now than 10 with 12,000, and more after they have grown.
  PrefillTraffic traffic = Traffic();
  traffic.mean_output_tokens = 1000;
  std::vector<PrefillRank> ranks = {RankOf(60, 6000), RankOf(10, 12000)};
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 100;
  const std::vector<WaitingPrompt> waiting = {{50, 0}};
  const PrefillDecision decision = PlanPrefill(ranks, waiting, traffic, {});
  ASSERT_EQ(decision.bindings.size(), 1U);
  EXPECT_EQ(decision.bindings[0].rank, 1);
}

std::vector<int32_t> RanksOf(const PrefillDecision& decision) {
  std::vector<int32_t> ranks;
  for (const auto& binding : decision.bindings) ranks.push_back(binding.rank);
  return ranks;
}

TEST(PlanPrefillTest, APromptGoesToTheRankThatHoldsItUnlessItsDecodesCostMore) {
  // The second rank's decodes are shorter by 1 ms.
  std::vector<PrefillRank> ranks = {RankOf(20, 2000), RankOf(20, 1000), RankOf(20, 3000)};
  const std::vector<int64_t> cached = {180, 0, 0};
  EXPECT_THAT(RanksOf(PlanPrefill(ranks, {{{200, 0.1}}}, Traffic(), {})), ElementsAre(1));
  EXPECT_THAT(RanksOf(PlanPrefill(ranks, {{{200, 0.1, kNoObjective, 0, cached}}}, Traffic(), {})),
              ElementsAre(0));
  // The prompt saves 18 ms of one of three ranks, 6 ms. On the rank that is the slowest its request's 230
  // tokens of context make 100 steps 0.23 ms longer each.
  const std::vector<int64_t> on_slowest = {0, 0, 180};
  ranks[2].decode_context = 40'000;
  EXPECT_THAT(RanksOf(PlanPrefill(ranks, {{{200, 0.1, kNoObjective, 0, on_slowest}}}, Traffic(), {})),
              ElementsAre(1));
}

TEST(PlanPrefillTest, APromptWaitsForTheRankThatHoldsItNoLongerThanThatSaves) {
  // The first rank computes another prompt.
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{5000, 0}}), RankOf(20, 2000)};
  const std::vector<int64_t> cached = {900, 0};
  const auto plan = [&](double waited_s) {
    return RanksOf(PlanPrefill(ranks, {{{1000, waited_s, kNoObjective, 0, cached}}}, Traffic(), {}));
  };
  // The second rank needs 0.09 s more; a step of 0.012 s passes until the plan takes effect.
  EXPECT_THAT(plan(0.09 - 0.012 - 0.001), ElementsAre());
  EXPECT_THAT(plan(0.09 - 0.012 + 0.001), ElementsAre(1));
  // No slot of the first rank is free, so that it will not take the prompt.
  std::vector<PrefillRank> full = ranks;
  full[0].free_slots = 0;
  EXPECT_THAT(RanksOf(PlanPrefill(full, {{{1000, 0, kNoObjective, 0, cached}}}, Traffic(), {})),
              ElementsAre(1));
}

TEST(PlanPrefillTest, OnlyTheMissingPartOfAPromptCountsForItsUrgency) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000)};
  const std::vector<int64_t> cached = {3900};
  EXPECT_THAT(WaitingOf(PlanPrefill(ranks, {{{200, 0.1}, {4000, 0.1}}}, Traffic(), {})).front(), 0);
  EXPECT_THAT(
      WaitingOf(PlanPrefill(ranks, {{{200, 0.1}, {4000, 0.1, kNoObjective, 0, cached}}}, Traffic(), {}))
          .front(),
      1);
}

TEST(PlanPrefillTest, WithFreeSlotsShortPromptsPrecedeUnlessOthersAreOld) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000)};
  const std::vector<WaitingPrompt> waiting = {{4000, 0.5}, {100, 0.1}, {3000, 0.4}};
  EXPECT_EQ(WaitingOf(PlanPrefill(ranks, waiting, Traffic(), {})).front(), 1);
  // A high age outweighs the length.
  const std::vector<WaitingPrompt> old = {{4000, 50}, {100, 0.1}};
  EXPECT_EQ(WaitingOf(PlanPrefill(ranks, old, Traffic(), {})).front(), 0);
}

TEST(PlanPrefillTest, WithFewSlotsTheFirstPromptGoesFirst) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 1)};
  const std::vector<WaitingPrompt> waiting = {{4000, 0.5}, {100, 0.1}};
  EXPECT_THAT(WaitingOf(PlanPrefill(ranks, waiting, Traffic(), {})), ElementsAre(0));
}

// Every prompt in progress gets a mean prompt's share of the horizon, so a long one gets no more than a short
// one.
TEST(PlanPrefillTest, LongPromptsRaiseTheLevelNoMoreThanMeanOnes) {
  const std::vector<PrefillRank> two_long = {RankOf(20, 2000, 10, {{20000, 0}}),
                                             RankOf(20, 2000, 10, {{20000, 0}})};
  const std::vector<PrefillRank> two_mean = {RankOf(20, 2000, 10, {{200, 0}}),
                                             RankOf(20, 2000, 10, {{200, 0}})};
  const double level = PlanPrefill(two_long, {}, Traffic(), {}).level_s;
  EXPECT_NEAR(level, PlanPrefill(two_mean, {}, Traffic(), {}).level_s, 1e-12);
  // pace 0.5, 10 a second, 40 decodes, 0.02 s each: k = 2, all ranks; tau is 2 / (10 * 0.012) = 16.7 steps.
  EXPECT_NEAR(level, SlowestWithoutPrompts(two_long) + 1e-4 * 200 / 16.7, 1e-4);
}

// The other ranks' free time exceeds what all prompts together should get. The long prompt is on the slowest
// rank, where the attention of its rows takes time that is not free.
TEST(PlanPrefillTest, TokensOfOtherRanksDoNotReplaceThoseOfALongPrompt) {
  PrefillTraffic traffic = Traffic();
  // Arrivals exceed the free time, so a rise of the level pays if 3.6 ranks' worth of rows share it.
  traffic.arrivals_per_s = 300;
  // tau: the 4 prompts in progress arrive in 4 / (300 * 0.012) = 1.1 steps; with the lag it is 5.1.
  traffic.lag_steps = 4;
  const auto tokens = [&](int64_t left, int64_t done) {
    std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{left, done}})};
    for (int i = 0; i < 3; ++i) ranks.push_back(RankOf(10, 0, 10, {{400, 50}}));
    for (PrefillRank& rank : ranks) {
      rank.cost.b0_tokens = 200;
      rank.cost.k1_s_per_pair = 1e-8;
    }
    const double level_s = PlanPrefill(ranks, {}, traffic, {}).level_s;
    const PrefillRank& rank = ranks.front();
    return static_cast<double>(
        TokensWithin({rank.cost, rank.decodes, rank.decode_context, rank.prompts}, level_s));
  };
  EXPECT_NEAR(tokens(300, 200), 500 / 5.11, 1) << "so much that it takes tau steps";
  // After 1,000 tokens the attention of a row takes a tenth of its time above the knee; 180 rows are free.
  EXPECT_NEAR(tokens(1200, 1000), 0.9 * 180, 1);
  EXPECT_NEAR(tokens(9000, 5000), 0.5 * 180, 1);
  EXPECT_EQ(tokens(9000, 20'000), 0) << "nothing is saved";
}

// For any lengths of prompts and any work of other ranks: when arrivals need all free time, and the level
// stops while as many ranks as there are share its rise, each rank's first prompt gets the rows with which it
// ends within tau steps, or the cheap rows of its rank if these are fewer.
TEST(PlanPrefillTest, EveryFirstPromptGetsItsShareOfCheapRowsWhileEnoughRanksShare) {
  int shared = 0, long_ones = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Rng rng(seed);
    std::vector<PrefillRank> ranks;
    const uint64_t count = 2 + rng.Below(7);
    for (uint64_t g = 0; g < count; ++g) {
      const auto rows = static_cast<int64_t>(20 + rng.Below(40));
      std::vector<PromptLeft> prompts;
      if (rng.Below(3) > 0) {
        prompts.push_back({1 + static_cast<int64_t>(rng.Below(1000)), static_cast<int64_t>(rng.Below(1000))});
      }
      ranks.push_back(RankOf(rows, 100.0 * static_cast<double>(rows), 0, prompts));
      ranks.back().cost.b0_tokens = 300;
      ranks.back().cost.k1_s_per_pair = 1e-8 * rng.Uniform();
    }
    // Enough arrivals that a prompt may take a single step.
    PrefillTraffic traffic = Traffic();
    traffic.arrivals_per_s = 3 * static_cast<double>(count) / traffic.mean_prefill_s;
    const double tau = 1;
    const double level_s = PlanPrefill(ranks, {}, traffic, {}).level_s;
    double sharing = 0;
    for (const PrefillRank& rank : ranks) {
      sharing += SharingAt({rank.cost, rank.decodes, rank.decode_context, rank.prompts}, level_s);
    }
    if (sharing < static_cast<double>(count)) continue;
    for (const PrefillRank& rank : ranks) {
      if (rank.prompts.empty()) continue;
      ++shared;
      const RankWork work{rank.cost, rank.decodes, rank.decode_context, rank.prompts};
      const PromptLeft& first = rank.prompts.front();
      const double attention = rank.cost.k1_s_per_pair * static_cast<double>(first.done) / 1e-4;
      const double cheap = static_cast<double>(work.FreeRows()) * std::max(0.0, 1 - attention);
      const double share = std::min(
          {static_cast<double>(first.left + first.done) / tau, cheap, static_cast<double>(first.left)});
      EXPECT_GE(static_cast<double>(TokensWithin(work, level_s)), std::floor(share)) << seed;
      long_ones += share > traffic.mean_prompt_tokens / tau ? 1 : 0;
    }
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(long_ones, 0);
}

TEST(PlanPrefillTest, AMeanPromptTakesAStepWhereArrivalsNeedIt) {
  // 400 a second are 4.8 per step, so k (two ranks with a prompt each) arrive in less than a step.
  PrefillTraffic busy = Traffic();
  busy.arrivals_per_s = 400;
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{200, 0}}), RankOf(20, 2000, 10, {{200, 0}})};
  EXPECT_NEAR(PlanPrefill(ranks, {}, busy, {}).level_s, SlowestWithoutPrompts(ranks) + 1e-4 * 200, 1e-9);
  busy.lag_steps = 1;
  EXPECT_NEAR(PlanPrefill(ranks, {}, busy, {}).level_s, SlowestWithoutPrompts(ranks) + 1e-4 * 100, 1e-9);
}

TEST(PlanPrefillTest, TheLagOfPlansAddsToTheHorizon) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{20000, 0}}),
                                          RankOf(20, 2000, 10, {{20000, 0}})};
  PrefillTraffic late = Traffic();
  late.lag_steps = 10;
  const double slowest = SlowestWithoutPrompts(ranks);
  const double at_once = PlanPrefill(ranks, {}, Traffic(), {}).level_s - slowest;
  const double later = PlanPrefill(ranks, {}, late, {}).level_s - slowest;
  EXPECT_NEAR(later / at_once, 16.7 / 26.7, 0.05);
}

TEST(PlanPrefillTest, ALonePromptWaitsForOthersThatAreExpected) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{500, 0}}), RankOf(20, 2000)};
  const double slowest = SlowestWithoutPrompts(ranks);
  // k = sqrt(2 * 10 * 40 * 0.02) = 4 exceeds the number of ranks.
  EXPECT_NEAR(PlanPrefill(ranks, {}, Traffic(), {}).level_s, slowest, 1e-12);
  PrefillTraffic rare = Traffic();
  rare.arrivals_per_s = 0.1;
  EXPECT_GT(PlanPrefill(ranks, {}, rare, {}).level_s, slowest + 1e-4) << "k = 0.4";
}

// Even if other prompts take long to arrive.
TEST(PlanPrefillTest, ALonePromptWaitsNoLongerThanTwiceTheTimeItWasMeantToTake) {
  std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{200, 0}}), RankOf(20, 2000)};
  const double slowest = SlowestWithoutPrompts(ranks), meant_s = 2.0 / 10;
  ranks[0].first_bound_for_s = 2 * meant_s - 0.01;
  EXPECT_NEAR(PlanPrefill(ranks, {}, Traffic(), {}).level_s, slowest, 1e-12);
  ranks[0].first_bound_for_s = 2 * meant_s + 0.01;
  EXPECT_GT(PlanPrefill(ranks, {}, Traffic(), {}).level_s, slowest + 1e-3);
}

// --- objectives ---

// One rank computes a prompt and another has long decodes, so without an objective the level stays at the
// slowest rank's decode time.
std::vector<PrefillRank> LonePrompt(int64_t tokens, double due_s) {
  std::vector<PrefillRank> ranks = {RankOf(20, 2000), RankOf(20, 2000)};
  ranks[0].Add({tokens, 0}, due_s);
  return ranks;
}

TEST(PlanPrefillObjectives, AnObjectiveThatWouldBeMissedRaisesTheLevel) {
  const double slowest = SlowestWithoutPrompts(LonePrompt(500, kNoObjective));
  EXPECT_NEAR(PlanPrefill(LonePrompt(500, kNoObjective), {}, Traffic(), {}).level_s, slowest, 1e-12);
  // 0.05 s of work within 0.25 s, next to 0.014 s of decodes: (0.25 - 0.05) / 0.014 is 14 steps; with half a
  // step to spare, 13.
  EXPECT_NEAR(PlanPrefill(LonePrompt(500, 0.25), {}, Traffic(), {}).level_s, slowest + 0.05 / 13, 1e-9);
  EXPECT_GT(PlanPrefill(LonePrompt(500, 0.2), {}, Traffic(), {}).level_s, slowest + 0.05 / 13);
}

TEST(PlanPrefillObjectives, AnObjectiveThatThePaceMeetsChangesNothing) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{500, 0}}), RankOf(20, 2000, 10, {{500, 0}})};
  std::vector<PrefillRank> with = ranks;
  with[0].due_s = {10};
  with[1].due_s = {10};
  EXPECT_EQ(PlanPrefill(with, {}, Traffic(), {}).level_s, PlanPrefill(ranks, {}, Traffic(), {}).level_s);
}

TEST(PlanPrefillObjectives, AnUnreachableObjectiveDoesNotRaiseTheLevel) {
  const double slowest = SlowestWithoutPrompts(LonePrompt(500, kNoObjective));
  for (const double due_s : {0.1, 0.05, 0.01, 0.0, -1.0}) {
    EXPECT_NEAR(PlanPrefill(LonePrompt(500, due_s), {}, Traffic(), {}).level_s, slowest, 1e-12) << due_s;
  }
}

TEST(PlanPrefillObjectives, WorkBeforeThePromptCounts) {
  std::vector<PrefillRank> ranks = LonePrompt(300, kNoObjective);
  ranks[0].Add({200, 0}, 0.25);
  EXPECT_EQ(PlanPrefill(ranks, {}, Traffic(), {}).level_s,
            PlanPrefill(LonePrompt(500, 0.25), {}, Traffic(), {}).level_s);
}

TEST(PlanPrefillObjectives, AWaitingPromptIsBoundAndComputedInTime) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000), RankOf(20, 2000)};
  const PrefillDecision without = PlanPrefill(ranks, {{{500, 0}}}, Traffic(), {});
  const PrefillDecision with = PlanPrefill(ranks, {{{500, 0, 0.25}}}, Traffic(), {});
  EXPECT_THAT(WaitingOf(with), ElementsAre(0));
  EXPECT_NEAR(with.level_s, SlowestWithoutPrompts(ranks) + 0.05 / 13, 1e-9);
  EXPECT_LT(without.level_s, with.level_s);
}

// The ranks still have prompts, and the waiting prompt needs one of them to finish.
TEST(PlanPrefillObjectives, AWaitingPromptRaisesTheLevelForThoseBeforeIt) {
  const std::vector<PrefillRank> ranks = {RankOf(20, 2000, 10, {{400, 0}}), RankOf(20, 2000, 10, {{400, 0}})};
  const std::vector<WaitingPrompt> waiting = {{200, 0, 0.3}};
  const PrefillDecision decision = PlanPrefill(ranks, waiting, Traffic(), {});
  EXPECT_THAT(WaitingOf(decision), ElementsAre());
  // 0.04 s on each rank, then 0.02 s of its own: (0.3 - 0.06) / 0.014 is 17 steps; with a margin, 16.
  EXPECT_NEAR(decision.level_s, SlowestWithoutPrompts(ranks) + 0.06 / 16, 1e-9);
  EXPECT_LT(PlanPrefill(ranks, {{{200, 0}}}, Traffic(), {}).level_s, decision.level_s);
}

// Steps of a group with prompts on its ranks and no arrivals, until all objectives are met or missed. Every
// objective that alone needs steps at most half as long again is met, and no step exceeds the bound.
TEST(PlanPrefillObjectives, EveryReachableObjectiveIsMet) {
  int met = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    std::vector<PrefillRank> ranks;
    for (uint64_t g = 1 + rng.Below(4); g > 0; --g) {
      ranks.push_back(
          RankOf(1 + static_cast<int64_t>(rng.Below(60)), 300.0 * static_cast<double>(rng.Below(30))));
      ranks.back().cost.b0_tokens = static_cast<int64_t>(rng.Below(100));
    }
    const double slowest = SlowestWithoutPrompts(ranks);
    // By rank: the objective; 0 if it need not be met.
    std::vector<double> reachable_s(ranks.size());
    for (size_t g = 0; g < ranks.size(); ++g) {
      if (rng.Below(4) == 0) continue;
      const int64_t tokens = 1 + static_cast<int64_t>(rng.Below(1000));
      const double due_s = 0.5 * rng.Uniform(), work_s = 1e-4 * static_cast<double>(tokens);
      const RankWork work{ranks[g].cost, ranks[g].decodes, ranks[g].decode_context, {}};
      const double other_s = work.SecondsWithoutPrompts() - 1e-4 * static_cast<double>(work.FreeRows());
      ranks[g].Add({tokens, 0}, due_s);
      // With one step to spare, because other ranks' objectives make steps longer.
      const bool reachable = LevelWithin(other_s, slowest, work_s, due_s - 1.5 * slowest) <= 1.5 * slowest;
      reachable_s[g] = reachable ? due_s : 0;
      met += reachable ? 1 : 0;
    }
    double now_s = 0;
    for (int step = 0; step < 200 && now_s < 0.5; ++step) {
      const double level_s = PlanPrefill(ranks, {}, Traffic(), {}).level_s;
      ASSERT_LE(level_s, slowest + 2 * std::max(slowest, Traffic().mean_prefill_s) + 1e-12) << seed;
      // An upper bound of the step's duration.
      now_s += level_s;
      for (size_t g = 0; g < ranks.size(); ++g) {
        PrefillRank& rank = ranks[g];
        if (rank.prompts.empty()) continue;
        const int64_t tokens =
            TokensWithin({rank.cost, rank.decodes, rank.decode_context, rank.prompts}, level_s);
        rank.prompts[0].left -= tokens;
        rank.prompts[0].done += tokens;
        rank.due_s[0] -= level_s;
        if (rank.prompts[0].left > 0) continue;
        const double due_s = reachable_s[g] > 0 ? reachable_s[g] : INFINITY;
        EXPECT_LE(now_s, due_s) << seed << ", rank " << g;
        rank.prompts.clear();
        rank.due_s.clear();
        reachable_s[g] = 0;
      }
    }
    EXPECT_EQ(*std::max_element(reachable_s.begin(), reachable_s.end()), 0) << seed << ": missed";
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(met, 100);
}

TEST(PlanPrefillTest, WithFewDecodesAPromptIsComputedAtOnce) {
  // The single decode waits 0.02 s for the prompt, which would otherwise take 16.7 steps of 0.012 s.
  const std::vector<PrefillRank> ranks = {RankOf(0, 0, 10, {{200, 0}}), RankOf(1, 100)};
  EXPECT_NEAR(PlanPrefill(ranks, {}, Traffic(), {}).level_s, 0.01 + 1e-4 * 200, 1e-9);
}

// For any number of waiting prompts of any length.
TEST(PlanPrefillTest, NoDecodeIsDelayedByMoreThanTwoMeanPromptsOrSteps) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    std::vector<PrefillRank> ranks;
    for (uint64_t g = 1 + rng.Below(8); g > 0; --g) {
      const auto rows = 1 + static_cast<int64_t>(rng.Below(60));
      ranks.push_back(RankOf(rows, 300.0 * static_cast<double>(rows), 100,
                             {{1 + static_cast<int64_t>(rng.Below(20000)), 0}}));
    }
    const std::vector<WaitingPrompt> waiting(rng.Below(500), WaitingPrompt{1000, 1});
    PrefillTraffic traffic = Traffic();
    traffic.arrivals_per_s = 1000 * rng.Uniform();
    const double slowest = SlowestWithoutPrompts(ranks);
    EXPECT_LE(PlanPrefill(ranks, waiting, traffic, {}).level_s,
              slowest + 2 * std::max(slowest, traffic.mean_prefill_s) + 1e-12)
        << seed;
  }
}

// Free rows are used, although their attention makes the step longer than that of the slowest rank.
TEST(PlanPrefillTest, FreeRowsAreUsedOnTheSlowestRank) {
  PrefillRank rank = RankOf(20, 2000, 10, {{500, 1000}});
  rank.cost.b0_tokens = 120;
  rank.cost.k1_s_per_pair = 1e-9;
  const PrefillDecision decision = PlanPrefill({{rank}}, {}, Traffic(), {});
  EXPECT_GE(TokensWithin({rank.cost, rank.decodes, rank.decode_context, rank.prompts}, decision.level_s),
            100);
}

// No other prompt arrives, all other ranks decode, and no row is free: the prompt is computed within twice
// its planned time plus the steps in which it then gets its share.
TEST(PlanPrefillTest, NoPromptStarves) {
  for (const int64_t length : {50, 200, 1000, 5000}) {
    std::vector<PrefillRank> ranks = {RankOf(90, 90000, 10, {{length, 0}}), RankOf(20, 2000)};
    const PrefillTraffic traffic = Traffic();
    const double tau = 16.7, means = std::max(1.0, static_cast<double>(length) / 200);
    double now_s = 0;
    int64_t steps_paid = 0;
    while (ranks[0].prompts.front().left > 0) {
      ranks[0].first_bound_for_s = now_s;
      const double level_s = PlanPrefill(ranks, {}, traffic, {}).level_s;
      PromptLeft& prompt = ranks[0].prompts.front();
      const int64_t tokens =
          TokensWithin({ranks[0].cost, ranks[0].decodes, ranks[0].decode_context, ranks[0].prompts}, level_s);
      steps_paid += tokens > 0 ? 1 : 0;
      prompt.left -= tokens;
      prompt.done += tokens;
      now_s += level_s;
      ASSERT_LT(now_s, 2 * tau * means * traffic.step_s + (tau * means + 2) * 0.2) << length;
    }
    EXPECT_LE(static_cast<double>(steps_paid), tau * means + 2) << length;
  }
}

TEST(PlanPrefillTest, APromptOnTheSlowestRankDoesNotStarve) {
  // At a level at which this rank computes none, the other rank's free time covers all tokens wanted.
  std::vector<PrefillRank> ranks = {RankOf(90, 90000, 10, {{500, 0}}), RankOf(10, 1000, 10, {{5000, 0}})};
  ranks[0].first_bound_for_s = 0.001;
  const double slowest = SlowestWithoutPrompts(ranks);
  EXPECT_NEAR(PlanPrefill(ranks, {}, Traffic(), {}).level_s, slowest, 1e-12);
  ranks[0].first_bound_for_s = 10;
  EXPECT_GT(PlanPrefill(ranks, {}, Traffic(), {}).level_s, slowest + 1e-4 * 10);
}

}  // namespace
}  // namespace bfio::core
