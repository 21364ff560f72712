// When prompts are released to engines that fill their own budgets: cases that are computed by hand, and
// invariants on random groups. A prompt's height is the time by which it lengthens a step.
#include <cstdint>
#include <set>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "tests/unit/router/core/prefill/prefill_case.h"

namespace bfio::core::release_planner_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ranks = std::vector<PrefillRank>;
using Prompts = std::vector<WaitingPrompt>;

// The prompts that go now, by index, and their ranks.
std::vector<int32_t> Released(const Ranks& ranks, const Prompts& waiting, const PrefillTraffic& traffic = {},
                              const ReleaseSettings& settings = {}, const GroupTerms& terms = {}) {
  return WaitingOf(PlanRelease(ranks, waiting, traffic, settings, terms));
}
std::vector<int32_t> PlacedOn(const Ranks& ranks, const Prompts& waiting, const PrefillTraffic& traffic = {},
                              const ReleaseSettings& settings = {}) {
  return RanksOf(PlanRelease(ranks, waiting, traffic, settings));
}
// Two ranks with so many decodes each, 100 tokens long.
Ranks Two(int64_t decodes, int64_t slots_of_second = 10, int64_t slots_of_first = 10) {
  const double context = 100.0 * static_cast<double>(decodes);
  return {RankOf(decodes, context, slots_of_first), RankOf(decodes, context, slots_of_second)};
}

TEST(PlanReleaseTest, APromptDoesNotWaitForOneThatComesTooLate) {
  // As above: 0.1 s of waiting pay for it.
  EXPECT_THAT(Released(Two(5), {{200, 0}}, {.arrivals_per_s = 11}), IsEmpty());
  EXPECT_THAT(Released(Two(5), {{200, 0}}, {.arrivals_per_s = 9}), ElementsAre(0));
  // Two of three ranks have one: 15 decodes wait 1 / 150 s. Two prompts wait 2 / 30 s for a third one, after
  // the first has waited 1 / 30 s for the second.
  const Ranks three(3, RankOf(5, 500));
  EXPECT_THAT(Released(three, {{200, 0}, {200, 0}}, {.arrivals_per_s = 31}), IsEmpty());
  EXPECT_THAT(Released(three, {{200, 0}, {200, 0}}, {.arrivals_per_s = 29}), ElementsAre(0, 1));
}

// A price of steps with prompts: 10 decodes pay it once for a wave, and nothing for prompts that join one.
TEST(PlanReleaseTest, PromptsWaitForEachOtherUntilTheyPayThePriceOfAStep) {
  const GroupTerms terms = {.prompt_s = 0.02};
  Ranks ranks = Two(5);
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 300;
  EXPECT_THAT(Released(ranks, {{200, 0.1}, {200, 0.09}}), ElementsAre(0, 1)) << "free rows";
  EXPECT_THAT(Released(ranks, {{200, 0.1}, {200, 0.09}}, {}, {}, terms), IsEmpty());
  EXPECT_THAT(Released(ranks, {{200, 0.1}, {200, 0.11}}, {}, {}, terms), ::testing::SizeIs(2));
  ranks[0].prompts = {{100, 0}};
  EXPECT_THAT(Released(ranks, {{200, 0}}, {}, {}, terms), ElementsAre(0)) << "the step has prompts anyway";
}

// Steps above the captured size cost the eager price.
TEST(PlanReleaseTest, OnlyStepsAboveTheCapturedSizePayForThem) {
  const GroupTerms terms = {.captured_rows = 100, .eager_s = 0.1};
  Ranks ranks = Two(5);
  for (PrefillRank& rank : ranks) rank.cost.b0_tokens = 300;
  EXPECT_THAT(Released(ranks, {{95, 0.1}}, {}, {}, terms), ElementsAre(0));
  EXPECT_THAT(Released(ranks, {{96, 0.1}}, {}, {}, terms), IsEmpty());
}

// For any number of decodes.
TEST(PlanReleaseTest, NoPromptIsHeldForLongerThanTwoStepsAndSixteenTimesItsHeight) {
  const PrefillTraffic traffic = {.step_s = 0.05};
  // The height is 0.02 s, and one step passes until the plan takes effect.
  const double most_s = 2 * 0.05 + 16 * 0.02 - 0.05;
  EXPECT_THAT(Released(Two(200), {{200, most_s - 0.01}}, traffic), IsEmpty());
  EXPECT_THAT(Released(Two(200), {{200, most_s + 0.01}}, traffic), ElementsAre(0));
  // Prompts of no greater height are released with it.
  EXPECT_THAT(Released(Two(200), {{200, most_s + 0.01}, {150, 0}, {300, 0}}, traffic), ElementsAre(0, 1));
}

// Two steps before the last one that would meet it, and not where no release meets it.
TEST(PlanReleaseTest, APromptIsReleasedInTimeForItsObjective) {
  // A step computes 300 tokens, so each prompt takes two; the height is that of 400 rows.
  const double needed_s = 2 * 0.05 + 0.04;
  const auto released = [&](double due_s, int64_t slots_of_first = 10, const Prompts& others = {}) {
    Prompts waiting = {{400, 0, due_s}};
    waiting.insert(waiting.end(), others.begin(), others.end());
    return Released(Two(200, slots_of_first == 10 ? 10 : 0, slots_of_first), waiting, {.step_s = 0.05},
                    {.step_tokens = 500});
  };
  EXPECT_THAT(released(needed_s + 2.1 * 0.05), IsEmpty());
  EXPECT_THAT(released(needed_s + 1.9 * 0.05), ElementsAre(0));
  EXPECT_THAT(released(needed_s + 0.001), ElementsAre(0));
  EXPECT_THAT(released(needed_s - 0.001), IsEmpty());
  EXPECT_THAT(released(needed_s + 0.05, 1, {{400, 0}}), IsEmpty())
      << "where slots are short, waves stay even";
}

TEST(PlanReleaseTest, AnOldLongPromptPrecedesYoungShortOnes) {
  // Ten times the length of the other prompt, and four times its age.
  EXPECT_EQ(Released({RankOf(0, 0)}, {{300, 1}, {3000, 4}}).front(), 1);
  EXPECT_EQ(Released({RankOf(0, 0)}, {{300, 1}, {3000, 3}}).front(), 0);
}

TEST(PlanReleaseTest, NearCapacityNoPromptWaitsForOthers) {
  // 100 prompt tokens per rank and step.
  const auto released = [](double arrivals_per_s) {
    const PrefillTraffic traffic = {
        .arrivals_per_s = arrivals_per_s, .mean_prompt_tokens = 200, .step_s = 0.01};
    return Released(Two(20), {{200, 0.1}}, traffic, {.step_tokens = 120});
  };
  EXPECT_THAT(released(10), IsEmpty()) << "a tenth of the capacity";
  EXPECT_THAT(released(90), ElementsAre(0)) << "nine tenths";
}

// When not all prompts can have a slot, an uneven wave would lengthen the backlog.
TEST(PlanReleaseTest, WhenSlotsAreShortTheOldestGoFirstAndOnlyTheCostToDecodesBoundsAWait) {
  EXPECT_THAT(Released({RankOf(0, 0, 1)}, {{4000, 0.5}, {100, 0.1}}), ElementsAre(0));
  EXPECT_THAT(Released({RankOf(0, 0, 0)}, {{4000, 0.5}}), IsEmpty());
  // 400 decodes wait for a rank that is idle for 0.01 s on average.
  EXPECT_THAT(Released(Two(200, 0, 1), {{200, 3.9}, {200, 0}}, {.step_s = 0.05}), IsEmpty());
  EXPECT_THAT(Released(Two(200, 0, 1), {{200, 4}, {200, 0}}, {.step_s = 0.05}), ElementsAre(0));
  // Three prompts would be even, but all go to the rank with slots: each has to pay alone.
  const Ranks one_has_slots = {RankOf(5, 500, 3), RankOf(5, 500, 0), RankOf(5, 500, 0)};
  EXPECT_THAT(Released(one_has_slots, Prompts(4, {.tokens = 200, .waited_s = 0.19})), IsEmpty());
  EXPECT_THAT(Released(one_has_slots, Prompts(4, {.tokens = 200, .waited_s = 0.21})), ElementsAre(0, 1, 2));
  WaitingPrompt long_without_room = {.tokens = 200, .waited_s = 9, .crowded_s = 5.1};
  EXPECT_THAT(Released(Two(200, 0, 1), {long_without_room, {200, 0}}, {.step_s = 0.05}), IsEmpty());
  long_without_room.crowded_s = 5;
  EXPECT_THAT(Released(Two(200, 0, 1), {long_without_room, {200, 0}}, {.step_s = 0.05}), ElementsAre(0));
}

// --- prefixes ---

TEST(PlanReleaseTest, APromptGoesToTheRankThatHasItsPrefixUnlessItsDecodesOutweighThat) {
  // The decodes of the first rank take 0.02 s less per step.
  const std::vector<int64_t> on_slower = {0, 900};
  EXPECT_THAT(PlacedOn({RankOf(0, 0), RankOf(20, 20000)}, {CachedPrompt(1000, 9, on_slower)}),
              ElementsAre(1));
  EXPECT_THAT(PlacedOn({RankOf(0, 0), RankOf(20, 20000)}, {{1000, 9}}), ElementsAre(0));
  // The third rank computes a long prompt, so neither of the others lengthens the step. The hit saves 0.09 s
  // of work, a third of it the group's; longer decodes cost some 0.0011 s a step.
  const Ranks ranks = {RankOf(20, 2000), RankOf(20, 20000), RankOf(20, 2000, 0, {{2000, 0}})};
  const std::vector<int64_t> on_slowest = {0, 900, 0};
  EXPECT_THAT(PlacedOn(ranks, {CachedPrompt(1000, 9, on_slowest)}, {.mean_output_tokens = 10}),
              ElementsAre(1));
  EXPECT_THAT(PlacedOn(ranks, {CachedPrompt(1000, 9, on_slowest)}, {.mean_output_tokens = 100}),
              ElementsAre(0));
}

TEST(PlanReleaseTest, WhenSlotsAreShortAPromptYieldsForTheLongestWait) {
  const std::vector<int64_t> full = {0, 500}, free = {500, 0};
  const Prompts waiting = {CachedPrompt(600, 2, full), CachedPrompt(600, 1, free)};
  EXPECT_THAT(Released(Two(1, 0, 1), waiting, {}, {.longest_wait_s = 3}), ElementsAre(1));
  EXPECT_THAT(Released(Two(1, 0, 1), waiting, {}, {.longest_wait_s = 1.9}), ElementsAre(0));
  // Without the other prompt, the only free slot is used.
  EXPECT_THAT(Released(Two(1, 0, 1), {waiting[0]}, {}, {.longest_wait_s = 3}), ElementsAre(0));
}

TEST(PlanReleaseTest, SoundOnRandomGroupsWithPrefixes) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    const auto below = [&](uint64_t most) { return static_cast<int64_t>(rng.Below(most)); };
    Ranks ranks;
    for (uint64_t g = 1 + rng.Below(8); g > 0; --g) {
      const int64_t rows = below(60);
      ranks.push_back(RankOf(rows, 300.0 * static_cast<double>(rows), below(5)));
      if (below(2) == 1) ranks.back().prompts.push_back({1 + below(900), 0});
      ranks.back().cost.b0_tokens = below(100);
      ranks.back().cost.k1_s_per_pair = 1e-8;
    }
    Prompts waiting(rng.Below(30));
    std::vector<std::vector<int64_t>> cached(waiting.size());
    for (size_t i = 0; i < waiting.size(); ++i) {
      waiting[i] = {1 + below(5000), rng.Uniform()};
      if (below(2) == 0) continue;
      for (size_t g = 0; g < ranks.size(); ++g)
        cached[i].push_back(below(static_cast<uint64_t>(waiting[i].tokens)));
      waiting[i].cached = cached[i];
    }
    std::vector<int64_t> taken(ranks.size());
    std::set<int32_t> bound;
    for (const auto& [index, rank] :
         PlanRelease(ranks, waiting, {}, {.step_tokens = 256, .longest_wait_s = rng.Uniform()})) {
      ASSERT_TRUE(index >= 0 && index < std::ssize(waiting) && rank >= 0 && rank < std::ssize(ranks)) << seed;
      EXPECT_TRUE(bound.insert(index).second) << "bound twice";
      EXPECT_LE(++taken[static_cast<size_t>(rank)], ranks[static_cast<size_t>(rank)].free_slots) << seed;
    }
  }
}

}  // namespace
}  // namespace bfio::core::release_planner_test
