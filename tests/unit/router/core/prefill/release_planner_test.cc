// When prompts are released to engines that fill their own budgets: cases that are computed by hand, and
// invariants on random groups. A prompt's height is the time by which it lengthens a step.
#include "router/core/prefill/release_planner.h"

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::core::release_planner_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Bindings = std::vector<PrefillDecision::Binding>;

// 0.1 ms per row; no row is free.
PrefillRank DecodingRank(int64_t decodes, double context, int64_t free_slots = 10,
                         std::vector<PromptLeft> prompts = {}) {
  PrefillRank rank;
  rank.cost.c_s = 0.01;
  rank.cost.a_s_per_token = 1e-4;
  rank.cost.b0_tokens = 0;
  rank.cost.k2_s_per_token = 1e-6;
  rank.decodes = decodes;
  rank.decode_context = context;
  rank.free_slots = free_slots;
  rank.prompts = std::move(prompts);
  return rank;
}

std::vector<int32_t> WaitingOf(const Bindings& bindings) {
  std::vector<int32_t> indices;
  for (const auto& binding : bindings) indices.push_back(binding.waiting);
  return indices;
}
std::vector<int32_t> RanksOf(const Bindings& bindings) {
  std::vector<int32_t> ranks;
  for (const auto& binding : bindings) ranks.push_back(binding.rank);
  return ranks;
}

TEST(PlanReleaseTest, WithoutDecodesEveryRankGetsAPromptAtOnce) {
  const std::vector<PrefillRank> ranks = {DecodingRank(0, 0), DecodingRank(0, 0)};
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, {{{5000, 0}, {4000, 0}, {3000, 0}}}, {}, {})), SizeIs(2));
  EXPECT_THAT(PlanRelease(ranks, {}, {}, {}), IsEmpty());
}

TEST(PlanReleaseTest, ALonePromptWaitsAsLongAsItsUnevennessCosts) {
  const std::vector<PrefillRank> ranks = {DecodingRank(5, 500), DecodingRank(5, 500)};
  // The height is 0.02 s on one of two ranks: 10 decodes wait for a rank that is idle for 0.01 s on average.
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.09}}}, {}, {}), IsEmpty());
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.11}}}, {}, {}), SizeIs(1));
}

TEST(PlanReleaseTest, APromptDoesNotWaitForOneThatComesTooLate) {
  const std::vector<PrefillRank> ranks = {DecodingRank(5, 500), DecodingRank(5, 500)};
  // As above: 0.1 s of waiting pay for it.
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0}}}, {.arrivals_per_s = 11}, {}), IsEmpty());
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0}}}, {.arrivals_per_s = 9}, {}), SizeIs(1));
  // Two of three ranks have one: 15 decodes wait 1 / 150 s. Two prompts wait 2 / 30 s for a third one, after
  // the first has waited 1 / 30 s for the second.
  const std::vector<PrefillRank> three(3, DecodingRank(5, 500));
  EXPECT_THAT(PlanRelease(three, {{{200, 0}, {200, 0}}}, {.arrivals_per_s = 31}, {}), IsEmpty());
  EXPECT_THAT(PlanRelease(three, {{{200, 0}, {200, 0}}}, {.arrivals_per_s = 29}, {}), SizeIs(2));
}

// For any number of decodes.
TEST(PlanReleaseTest, NoPromptIsHeldForLongerThanTwoStepsAndSixteenTimesItsHeight) {
  const std::vector<PrefillRank> ranks = {DecodingRank(200, 20000), DecodingRank(200, 20000)};
  PrefillTraffic traffic = {.step_s = 0.05};
  // The height is 0.02 s, and one step passes until the plan takes effect.
  const double most_s = 2 * 0.05 + 16 * 0.02 - 0.05;
  EXPECT_THAT(PlanRelease(ranks, {{{200, most_s - 0.01}}}, traffic, {}), IsEmpty());
  EXPECT_THAT(PlanRelease(ranks, {{{200, most_s + 0.01}}}, traffic, {}), SizeIs(1));
  // Prompts of no greater height are released with it.
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, {{{200, most_s + 0.01}, {150, 0}, {300, 0}}}, traffic, {})),
              ElementsAre(0, 1));
}

// Two steps before the last one that would meet it, and not where no release meets it.
TEST(PlanReleaseTest, APromptIsReleasedInTimeForItsObjective) {
  const std::vector<PrefillRank> ranks = {DecodingRank(200, 20000), DecodingRank(200, 20000)};
  PrefillTraffic traffic = {.step_s = 0.05};
  // A step computes 300 tokens, so each prompt takes two; the height is that of 400 rows.
  const ReleaseSettings settings{.step_tokens = 500};
  const double needed_s = 2 * 0.05 + 0.04;
  const auto plan = [&](double due_s) { return PlanRelease(ranks, {{{400, 0, due_s}}}, traffic, settings); };
  EXPECT_THAT(plan(needed_s + 2.1 * 0.05), IsEmpty());
  EXPECT_THAT(plan(needed_s + 1.9 * 0.05), SizeIs(1));
  EXPECT_THAT(plan(needed_s + 0.001), SizeIs(1));
  EXPECT_THAT(plan(needed_s - 0.001), IsEmpty());
  // Where slots are short, waves stay even.
  const std::vector<PrefillRank> full = {DecodingRank(200, 20000, 1), DecodingRank(200, 20000, 0)};
  EXPECT_THAT(PlanRelease(full, {{{400, 0, needed_s + 0.05}, {400, 0}}}, traffic, settings), IsEmpty());
}

TEST(PlanReleaseTest, AnOldLongPromptPrecedesYoungShortOnes) {
  const std::vector<PrefillRank> ranks = {DecodingRank(0, 0)};
  // Ten times the length of the other prompt, and four times its age.
  EXPECT_EQ(WaitingOf(PlanRelease(ranks, {{{300, 1}, {3000, 4}}}, {}, {})).front(), 1);
  EXPECT_EQ(WaitingOf(PlanRelease(ranks, {{{300, 1}, {3000, 3}}}, {}, {})).front(), 0);
}

TEST(PlanReleaseTest, AnEvenWaveGoesAtOnce) {
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000), DecodingRank(20, 2000)};
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{200, 0}, {200, 0}}}, {}, {})),
              ::testing::UnorderedElementsAre(0, 1));
}

// The waits of all prompts of a wave add up: 0.1 + 0.05 exceeds 40 * (0.02 - 0.0175) = 0.1.
TEST(PlanReleaseTest, PromptsOfDifferentLengthsWaitTogether) {
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000), DecodingRank(20, 2000)};
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.1}, {150, 0.05}}}, {}, {}), SizeIs(2));
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.01}, {150, 0.01}}}, {}, {}), IsEmpty());
}

TEST(PlanReleaseTest, APromptWithinTheSlowestRanksTimeGoesAtOnce) {
  // The second rank's decodes take 0.007 s less, because its context is shorter.
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 9000), DecodingRank(20, 2000)};
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{69, 0}}}, {}, {})), ElementsAre(1));
  EXPECT_THAT(PlanRelease(ranks, {{{71, 0}}}, {}, {}), IsEmpty());
}

// A budget spreads a prompt over several steps, and each of them has free time.
TEST(PlanReleaseTest, EveryStepThatAPromptTakesHasItsSlack) {
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 9000), DecodingRank(20, 2000)};
  const std::vector<WaitingPrompt> waiting = {{200, 0}};
  EXPECT_THAT(PlanRelease(ranks, waiting, {}, {.step_tokens = 20 + 70}), SizeIs(1)) << "three steps";
  EXPECT_THAT(PlanRelease(ranks, waiting, {}, {.step_tokens = 20 + 200}), IsEmpty()) << "one";
}

TEST(PlanReleaseTest, FreeRowsAreSlack) {
  std::vector<PrefillRank> ranks = {DecodingRank(20, 2000), DecodingRank(20, 2000)};
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 100;
  EXPECT_THAT(PlanRelease(ranks, {{{80, 0}}}, {}, {}), SizeIs(1));
  EXPECT_THAT(PlanRelease(ranks, {{{90, 0}}}, {}, {}), IsEmpty());
}

TEST(PlanReleaseTest, APromptWithinAWavesTimeJoinsIt) {
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000, 10, {{300, 0}}), DecodingRank(20, 2000)};
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{300, 0}}}, {}, {})), ElementsAre(1));
  EXPECT_THAT(PlanRelease(ranks, {{{900, 0}}}, {}, {}), IsEmpty());
}

TEST(PlanReleaseTest, ARankWhoseNextStepIsFullGetsNone) {
  // Both would wait behind 600 tokens, six steps of budget; until then they can still go elsewhere.
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000, 10, {{600, 0}}),
                                          DecodingRank(20, 2000, 10, {{600, 0}})};
  const std::vector<WaitingPrompt> waiting = {{100, 50}, {100, 50}};
  EXPECT_THAT(PlanRelease(ranks, waiting, {}, {.step_tokens = 120}), IsEmpty());
  EXPECT_THAT(PlanRelease(ranks, waiting, {}, {.step_tokens = 2048}), SizeIs(2));
}

TEST(PlanReleaseTest, NearCapacityNoPromptWaitsForOthers) {
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000), DecodingRank(20, 2000)};
  PrefillTraffic traffic = {.mean_prompt_tokens = 200, .step_s = 0.01};
  // 100 prompt tokens per rank and step.
  const ReleaseSettings settings = {.step_tokens = 120};
  traffic.arrivals_per_s = 10;
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.1}}}, traffic, settings), IsEmpty()) << "a tenth of the capacity";
  traffic.arrivals_per_s = 90;
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.1}}}, traffic, settings), SizeIs(1)) << "nine tenths";
}

TEST(PlanReleaseTest, TheLongestGoesToTheShortestDecodes) {
  const std::vector<PrefillRank> ranks = {DecodingRank(0, 0), DecodingRank(20, 1000), DecodingRank(20, 3000)};
  const Bindings bindings = PlanRelease(ranks, {{{100, 9}, {300, 9}, {200, 9}}}, {}, {});
  EXPECT_THAT(WaitingOf(bindings), ElementsAre(1, 2, 0));
  EXPECT_THAT(RanksOf(bindings), ElementsAre(0, 1, 2));
}

TEST(PlanReleaseTest, WhenSlotsAreShortTheOldestGoFirst) {
  const std::vector<PrefillRank> ranks = {DecodingRank(0, 0, 1)};
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, {{{4000, 0.5}, {100, 0.1}}}, {}, {})), ElementsAre(0));
  EXPECT_THAT(PlanRelease({{DecodingRank(0, 0, 0)}}, {{{4000, 0.5}}}, {}, {}), IsEmpty());
}

// When not all prompts can have a slot, an uneven wave would lengthen the backlog.
TEST(PlanReleaseTest, WhenSlotsAreShortOnlyTheCostToDecodesBoundsAWait) {
  const std::vector<PrefillRank> ranks = {DecodingRank(200, 20000, 1), DecodingRank(200, 20000, 0)};
  const PrefillTraffic traffic = {.step_s = 0.05};
  // 400 decodes wait for a rank that is idle for 0.01 s on average.
  EXPECT_THAT(PlanRelease(ranks, {{{200, 3.9}, {200, 0}}}, traffic, {}), IsEmpty());
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, {{{200, 4}, {200, 0}}}, traffic, {})), ElementsAre(0));
}

// --- prefixes ---

TEST(PlanReleaseTest, APromptGoesToTheRankThatHasItsPrefix) {
  // The decodes of the first rank take 0.02 s less per step.
  const std::vector<PrefillRank> ranks = {DecodingRank(0, 0), DecodingRank(20, 20000)};
  const std::vector<int64_t> cached = {0, 900};
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{1000, 9, kNoObjective, 0, cached}}}, {}, {})), ElementsAre(1));
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{1000, 9}}}, {}, {})), ElementsAre(0));
}

TEST(PlanReleaseTest, AHitThatTheDecodesOfTheSlowestRankOutweighIsNotUsed) {
  // The third rank computes a long prompt, so neither of the others lengthens the step.
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000), DecodingRank(20, 20000),
                                          DecodingRank(20, 2000, 0, {{2000, 0}})};
  const std::vector<int64_t> cached = {0, 900, 0};
  const std::vector<WaitingPrompt> waiting = {{1000, 9, kNoObjective, 0, cached}};
  // The hit saves 0.09 s of work, a third of it the group's; longer decodes cost some 0.0011 s a step.
  EXPECT_THAT(RanksOf(PlanRelease(ranks, waiting, {.mean_output_tokens = 10}, {})), ElementsAre(1));
  EXPECT_THAT(RanksOf(PlanRelease(ranks, waiting, {.mean_output_tokens = 100}, {})), ElementsAre(0));
}

// The height counts only the tokens to compute.
TEST(PlanReleaseTest, CachedTokensDoNotDelayDecodes) {
  const std::vector<PrefillRank> ranks = {DecodingRank(5, 500), DecodingRank(5, 500)};
  const std::vector<int64_t> cached = {0, 180};
  EXPECT_THAT(PlanRelease(ranks, {{{200, 0.02}}}, {}, {}), IsEmpty());
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{200, 0.02, kNoObjective, 0, cached}}}, {}, {})), ElementsAre(1));
}

TEST(PlanReleaseTest, APromptWaitsForABusyRankNoLongerThanItsPrefixSaves) {
  const std::vector<PrefillRank> ranks = {DecodingRank(0, 0), DecodingRank(0, 0, 10, {{3000, 0}})};
  const std::vector<int64_t> cached = {0, 500};
  // Computing 500 tokens takes 0.05 s.
  EXPECT_THAT(PlanRelease(ranks, {{{600, 0.04, kNoObjective, 0, cached}}}, {}, {}), IsEmpty());
  EXPECT_THAT(RanksOf(PlanRelease(ranks, {{{600, 0.06, kNoObjective, 0, cached}}}, {}, {})), ElementsAre(0));
}

TEST(PlanReleaseTest, PromptsOfOneTextFollowEachOtherOnItsRank) {
  const std::vector<PrefillRank> ranks = {DecodingRank(20, 2000), DecodingRank(20, 2000)};
  const std::vector<int64_t> cached = {900, 0};
  const std::vector<WaitingPrompt> waiting(2, {1000, 9, kNoObjective, 0, cached});
  EXPECT_THAT(RanksOf(PlanRelease(ranks, waiting, {}, {})), ElementsAre(0, 0));
}

TEST(PlanReleaseTest, WhenSlotsAreShortAPromptYieldsForTheLongestWait) {
  const std::vector<PrefillRank> ranks = {DecodingRank(1, 100, 1), DecodingRank(1, 100, 0)};
  const std::vector<int64_t> full = {0, 500}, free = {500, 0};
  const std::vector<WaitingPrompt> waiting = {{600, 2, kNoObjective, 0, full},
                                              {600, 1, kNoObjective, 0, free}};
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, waiting, {}, {.longest_wait_s = 3})), ElementsAre(1));
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, waiting, {}, {.longest_wait_s = 1.9})), ElementsAre(0));
  // Without the other prompt, the only free slot is used.
  EXPECT_THAT(WaitingOf(PlanRelease(ranks, {waiting.data(), 1}, {}, {.longest_wait_s = 3})), ElementsAre(0));
}

TEST(PlanReleaseTest, SoundOnRandomGroups) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    std::vector<PrefillRank> ranks;
    for (uint64_t g = 1 + rng.Below(8); g > 0; --g) {
      std::vector<PromptLeft> prompts;
      for (uint64_t i = rng.Below(2); i > 0; --i)
        prompts.push_back({1 + static_cast<int64_t>(rng.Below(900)), 0});
      const auto rows = static_cast<int64_t>(rng.Below(60));
      ranks.push_back(
          DecodingRank(rows, 300.0 * static_cast<double>(rows), static_cast<int64_t>(rng.Below(5)), prompts));
      ranks.back().cost.b0_tokens = static_cast<int64_t>(rng.Below(100));
      ranks.back().cost.k1_s_per_pair = 1e-8;
    }
    std::vector<WaitingPrompt> waiting;
    for (uint64_t i = rng.Below(30); i > 0; --i) {
      waiting.push_back({1 + static_cast<int64_t>(rng.Below(5000)), rng.Uniform()});
    }
    std::vector<std::vector<int64_t>> cached(waiting.size());
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (rng.Below(2) == 0) continue;
      for (size_t g = 0; g < ranks.size(); ++g)
        cached[i].push_back(static_cast<int64_t>(rng.Below(static_cast<uint64_t>(waiting[i].tokens))));
      waiting[i].cached = cached[i];
    }
    std::vector<int64_t> taken(ranks.size());
    std::set<int32_t> bound;
    for (const auto& binding :
         PlanRelease(ranks, waiting, {}, {.step_tokens = 256, .longest_wait_s = rng.Uniform()})) {
      ASSERT_GE(binding.waiting, 0);
      ASSERT_LT(binding.waiting, std::ssize(waiting));
      ASSERT_GE(binding.rank, 0);
      ASSERT_LT(binding.rank, std::ssize(ranks));
      EXPECT_TRUE(bound.insert(binding.waiting).second) << "bound twice";
      EXPECT_LE(++taken[binding.rank], ranks[binding.rank].free_slots) << seed;
    }
  }
}

// For any length and any other prompts: after N times its height (N decodes) a rank with room gets it, unless
// a prompt with a greater age over the root of its length precedes it.
TEST(PlanReleaseTest, NoPromptIsHeldForLongerThanItCostsAllDecodes) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    std::vector<PrefillRank> ranks;
    double decodes = 0;
    for (uint64_t g = 1 + rng.Below(8); g > 0; --g) {
      const auto rows = 1 + static_cast<int64_t>(rng.Below(60));
      ranks.push_back(DecodingRank(rows, 300.0 * static_cast<double>(rows), 100));
      decodes += static_cast<double>(rows);
    }
    const auto tokens = 1 + static_cast<int64_t>(rng.Below(5000));
    std::vector<WaitingPrompt> waiting = {{tokens, decodes * 1e-4 * static_cast<double>(tokens) + 1e-6}};
    const double age = waiting[0].waited_s / std::sqrt(static_cast<double>(tokens));
    for (uint64_t i = rng.Below(20); i > 0; --i) {
      const auto other = 1 + static_cast<int64_t>(rng.Below(5000));
      waiting.push_back({other, rng.Uniform() * age * std::sqrt(static_cast<double>(other)) / 2});
    }
    const std::vector<int32_t> bound = WaitingOf(PlanRelease(ranks, waiting, {}, {}));
    EXPECT_THAT(bound, ::testing::Contains(0)) << seed;
  }
}

}  // namespace
}  // namespace bfio::core::release_planner_test
