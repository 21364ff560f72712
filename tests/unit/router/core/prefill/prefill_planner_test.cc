// Plans for prompts: decisions in cases small enough to compute by hand, and properties of the level.
// starvation_test.cc has the bounds and the order of prompts over time.
#include "router/core/prefill/prefill_planner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "tests/unit/router/core/prefill/prefill_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ranks = std::vector<PrefillRank>;
using Prompts = std::vector<WaitingPrompt>;

PrefillTraffic Traffic() {
  return {.arrivals_per_s = 10,
          .mean_prompt_tokens = 200,
          .mean_prefill_s = 0.02,
          .mean_output_tokens = 100,
          .step_s = 0.012};
}

PrefillDecision Plan(const Ranks& ranks, const Prompts& waiting = {},
                     const PrefillTraffic& traffic = Traffic(), const GroupTerms& terms = {}) {
  return PlanPrefill(ranks, waiting, traffic, terms, {});
}
// Seconds by which the level exceeds the slowest rank's time without prompts; 0: it does not.
double Rise(const Ranks& ranks, const Prompts& waiting = {}, const PrefillTraffic& traffic = Traffic()) {
  return std::max(0.0, Plan(ranks, waiting, traffic).level_s - SlowestWithoutPrompts(ranks));
}
std::vector<int32_t> PlacedOn(const Ranks& ranks, const Prompts& waiting,
                              const PrefillTraffic& traffic = Traffic(), const GroupTerms& terms = {}) {
  return RanksOf(Plan(ranks, waiting, traffic, terms).bindings);
}

// Two ranks with 20 decodes each; the first has these prompts, the second these.
Ranks Two(std::vector<PromptLeft> first = {}, std::vector<PromptLeft> second = {}) {
  return {RankOf(20, 2000, 10, std::move(first)), RankOf(20, 2000, 10, std::move(second))};
}

// --- where prompts go ---

TEST(PlanPrefillTest, TheLongestGoesToTheLeastLoadedAndNoneToTheSlowest) {
  const PrefillDecision decision =
      Plan({RankOf(20, 9000), RankOf(20, 1000), RankOf(20, 5000)}, {{1000, 0.1}, {2000, 0.1}});
  ASSERT_EQ(decision.bindings.size(), 2U);
  for (const auto& [index, rank] : decision.bindings) EXPECT_EQ(rank, index == 1 ? 1 : 2);
}

TEST(PlanPrefillTest, ARankThatGrowsFasterIsMoreLoaded) {
  // 60 residents with 6,000 tokens hold less now than 10 with 12,000, and more after they have grown.
  PrefillTraffic traffic = Traffic();
  traffic.mean_output_tokens = 1000;
  Ranks ranks = {RankOf(60, 6000), RankOf(10, 12000)};
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 100;
  EXPECT_THAT(PlacedOn(ranks, {{50, 0}}, traffic), ElementsAre(1));
}

// The first rank has most rows, the second most context and the longer decodes. Where rows are padded, a
// short prompt costs the group more by its row than by its context.
TEST(PlanPrefillTest, PaddedRanksHaveAMaximumOfRowsAndOneOfContext) {
  const Ranks ranks = {RankOf(0, 0, 10, std::vector<PromptLeft>(30, {1, 99})),
                       RankOf(0, 0, 10, std::vector<PromptLeft>(20, {1, 249}))};
  for (const int64_t tokens : {20, 500}) {
    PrefillTraffic traffic = Traffic();
    traffic.mean_prompt_tokens = static_cast<double>(tokens);
    EXPECT_THAT(PlacedOn(ranks, {{tokens, 5}}, traffic), ElementsAre(0)) << tokens;
    EXPECT_THAT(PlacedOn(ranks, {{tokens, 5}}, traffic, {.padded = true}), ElementsAre(tokens == 20 ? 1 : 0))
        << tokens;
  }
}

TEST(PlanPrefillTest, APromptWaitsForTheRankThatHoldsItNoLongerThanThatSaves) {
  // The first rank computes another prompt.
  Ranks ranks = Two({{5000, 0}});
  const std::vector<int64_t> cached = {900, 0};
  // The second rank needs 0.09 s more; a step of 0.012 s passes until the plan takes effect.
  EXPECT_THAT(PlacedOn(ranks, {CachedPrompt(1000, 0.09 - 0.012 - 0.001, cached)}), IsEmpty());
  EXPECT_THAT(PlacedOn(ranks, {CachedPrompt(1000, 0.09 - 0.012 + 0.001, cached)}), ElementsAre(1));
  // No slot of the first rank is free, so that it will not take the prompt.
  ranks[0].free_slots = 0;
  EXPECT_THAT(PlacedOn(ranks, {CachedPrompt(1000, 0, cached)}), ElementsAre(1));
}

// --- the level ---

TEST(PlanPrefillTest, ALonePromptWaitsUntilItHasWaitedAsMuchAsItDelaysDecodesForIdleRanks) {
  // 500 tokens delay 40 decodes by 0.05 s, in which another prompt could have been computed on the other
  // rank.
  Ranks ranks = Two({{500, 0}});
  PrefillTraffic traffic = Traffic();
  traffic.step_s = 0.1;
  EXPECT_EQ(Plan(ranks, {}, traffic).level_s, 0);
  ranks[0].first_bound_for_s = 40 * 0.05 / 2 - 0.01;
  EXPECT_EQ(Plan(ranks, {}, traffic).level_s, 0);
  ranks[0].first_bound_for_s = 40 * 0.05 / 2 + 0.01;
  EXPECT_GE(TokensWithin(WorkOf(ranks[0]), Plan(ranks, {}, traffic).level_s), 400) << "a step's limit";
}

// Where free rows suffice for what arrives, prompts get those, and more only as far as they have waited.
TEST(PlanPrefillTest, PromptsThatNoneFollowUseTheFreeRowsOfSeveralSteps) {
  Ranks ranks = Two({{400, 0}}, {{400, 0}});
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 120;
  EXPECT_NEAR(Rise(ranks), 0, 1e-4);
  EXPECT_EQ(TokensWithin(WorkOf(ranks[0]), Plan(ranks).level_s), 100);
  const Prompts backlog(20, {400, 0.1});
  EXPECT_GT(Rise(ranks, backlog), 1e-4 * 300) << "others will use the next steps' free rows";
}

// A price of steps with prompts: they wait until they pay it together, also below the slowest rank's time.
TEST(PlanPrefillTest, PromptsWaitForEachOtherUntilTheyPayThePriceOfAStep) {
  const GroupTerms terms = {.prompt_s = 0.02};
  // 40 decodes wait for 0.02 s, of which the free rows save 0.008 s.
  Ranks ranks = Two({{80, 0}}, {{80, 0}});
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 100;
  EXPECT_GT(Plan(ranks).level_s, 0);
  for (const double waited_s : {0.23, 0.25}) {
    for (PrefillRank& rank : ranks) rank.first_bound_for_s = waited_s;
    EXPECT_EQ(Plan(ranks, {}, Traffic(), terms).level_s > 0, waited_s > 0.24) << waited_s;
  }
}

// Above the captured size all ranks pay the eager price: the step ends below it, unless the prompts pay it.
TEST(PlanPrefillTest, AStepExceedsTheCapturedSizeOnlyWhereThatPays) {
  Ranks ranks = Two({{300, 0}}, {{300, 0}});
  const auto tokens = [&](double eager_s) {
    const GroupTerms terms = {.padded = true, .captured_rows = 120, .eager_s = eager_s};
    return TokensWithin(WorkOf(ranks[0]), Plan(ranks, {}, Traffic(), terms).level_s);
  };
  EXPECT_GT(tokens(0), 100);
  const int64_t below = tokens(1);
  EXPECT_LE(below, 100);
  EXPECT_GT(below, 60);
  for (PrefillRank& rank : ranks) rank.first_bound_for_s = 0.4;
  EXPECT_GT(tokens(1e-3), 100);
}

// Padded rows: the time below the slowest rank's attention has no free rows, since the others' rows cost all.
TEST(PlanPrefillTest, PaddedRanksHaveFreeRowsOnlyUpToTheLargestRank) {
  // The first rank is 9 ms slower by its context.
  Ranks ranks = {RankOf(60, 11000), RankOf(20, 2000, 10, {{500, 0}})};
  const auto most_rows = [&](const GroupTerms& terms) {
    const double level_s = Plan(ranks, {}, Traffic(), terms).level_s;
    return ranks[1].decodes + TokensWithin(WorkOf(ranks[1]), level_s);
  };
  EXPECT_GE(most_rows({}), 150);
  const int64_t padded = most_rows({.padded = true});
  EXPECT_LE(padded, 60);
  EXPECT_GT(padded, 40);
}

TEST(PlanPrefillTest, AnOverdueWaitingPromptStartsAlthoughItDelaysManyDecodes) {
  Ranks ranks = {RankOf(200, 20000), RankOf(200, 20000)};
  PrefillTraffic traffic = Traffic();
  traffic.arrivals_per_s = 100;
  const double held_s = 2 * traffic.step_s + 16 * 0.02 - traffic.step_s;
  EXPECT_EQ(Plan(ranks, {{200, held_s - 0.01}}, traffic).level_s, 0);
  EXPECT_THAT(PlacedOn(ranks, {{200, held_s - 0.01}}, traffic), IsEmpty());
  EXPECT_GE(Rise(ranks, {{200, held_s + 0.01}}, traffic), 1e-4 * 200);
  EXPECT_THAT(PlacedOn(ranks, {{200, held_s + 0.01}}, traffic), ElementsAre(0));
}

TEST(PlanPrefillTest, APromptOnTheSlowestRankDoesNotStarve) {
  // At a level at which this rank computes none, the other rank's free time covers all tokens wanted.
  Ranks ranks = {RankOf(90, 90000, 10, {{500, 0}}), RankOf(10, 1000, 10, {{5000, 0}})};
  ranks[0].first_bound_for_s = 0.001;
  EXPECT_EQ(TokensWithin(WorkOf(ranks[0]), Plan(ranks).level_s), 0);
  ranks[0].first_bound_for_s = 10;
  EXPECT_GT(Rise(ranks), 1e-4 * 10);
}

// --- objectives ---

// One rank computes a prompt and another has long decodes, so without an objective the level stays at the
// slowest rank's decode time.
Ranks LonePrompt(int64_t tokens, double due_s) {
  Ranks ranks = Two();
  ranks[0].Add({tokens, 0}, due_s);
  return ranks;
}

TEST(PlanPrefillObjectives, OneThatWouldBeMissedRaisesTheLevelAndOneThatCannotBeMetDoesNot) {
  EXPECT_NEAR(Rise(LonePrompt(500, kNoObjective)), 0, 1e-12);
  // 0.05 s of work within 0.25 s, next to 0.014 s of decodes: (0.25 - 0.05) / 0.014 is 14 steps; with half a
  // step to spare, 13.
  EXPECT_NEAR(Rise(LonePrompt(500, 0.25)), 0.05 / 13, 1e-9);
  EXPECT_GT(Rise(LonePrompt(500, 0.2)), 0.05 / 13);
  for (const double due_s : {0.1, 0.05, 0.01, 0.0, -1.0})
    EXPECT_NEAR(Rise(LonePrompt(500, due_s)), 0, 1e-12) << due_s << ": unreachable";
  Ranks after_another = LonePrompt(300, kNoObjective);
  after_another[0].Add({200, 0}, 0.25);
  EXPECT_EQ(Rise(after_another), Rise(LonePrompt(500, 0.25))) << "work before the prompt counts";
}

TEST(PlanPrefillObjectives, AWaitingPromptIsBoundAndComputedInTimeWithThoseBeforeIt) {
  EXPECT_THAT(WaitingOf(Plan(Two(), {{500, 0, 0.25}}).bindings), ElementsAre(0));
  EXPECT_NEAR(Rise(Two(), {{500, 0, 0.25}}), 0.05 / 13, 1e-9);
  EXPECT_LT(Rise(Two(), {{500, 0}}), 0.05 / 13);
}

// Steps of a group with prompts on its ranks and no arrivals, until all objectives are met or missed. Every
// objective that alone needs steps at most half as long again is met, and no step exceeds the bound.
TEST(PlanPrefillObjectives, EveryReachableObjectiveIsMet) {
  int met = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    Ranks ranks;
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
      const RankWork work = WorkOf(ranks[g]);
      const double other_s = work.SecondsWithoutPrompts() - 1e-4 * static_cast<double>(work.FreeRows());
      ranks[g].Add({tokens, 0}, due_s);
      // With one step to spare, because other ranks' objectives make steps longer.
      const bool reachable = LevelWithin(other_s, slowest, work_s, due_s - 1.5 * slowest) <= 1.5 * slowest;
      reachable_s[g] = reachable ? due_s : 0;
      met += reachable ? 1 : 0;
    }
    double now_s = 0;
    for (int step = 0; step < 200 && now_s < 0.5; ++step) {
      const double level_s = Plan(ranks).level_s;
      ASSERT_LE(level_s, slowest + 2 * std::max(slowest, Traffic().mean_prefill_s) + 1e-12) << seed;
      // An upper bound of the step's duration.
      const double took_s = std::max(level_s, slowest);
      now_s += took_s;
      for (size_t g = 0; g < ranks.size(); ++g) {
        PrefillRank& rank = ranks[g];
        if (rank.prompts.empty()) continue;
        const int64_t tokens = TokensWithin(WorkOf(rank), level_s);
        rank.prompts[0].left -= tokens;
        rank.prompts[0].done += tokens;
        rank.due_s[0] -= took_s;
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

}  // namespace
}  // namespace bfio::core
