#include "router/core/lookahead/hint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "router/core/lookahead/fixed_length.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival.h"
#include "tests/unit/router/core/lookahead/population.h"

namespace bfio::core {
namespace {

int64_t Length(uint32_t, Rng& rng) {
  return GeometricLength(rng, 0.02);
}

// Runs both lookaheads on the same requests and hints; Gain is the relative reduction of log-loss by `hint`
// against `survival`.
struct Race {
  explicit Race(Population::Hints hints, uint64_t seed = 21)
      : survival({}),
        hint({}),
        with_survival(survival, 300, 1, seed, Length, hints),
        with_hint(hint, 300, 1, seed, Length, hints) {}

  void Run(int64_t steps) {
    with_survival.Run(steps);
    with_hint.Run(steps);
  }
  double Gain(int32_t h, int64_t steps) {
    double a = 0, b = 0;
    for (int64_t i = 0; i < steps; ++i) {
      Run(1);
      a += with_survival.LogLoss(h);
      b += with_hint.LogLoss(h);
    }
    return 1 - b / a;
  }

  SurvivalLookahead survival;
  HintLookahead hint;
  Population with_survival, with_hint;
};

TEST(Calibration, LearnsFromOutcomesNotFromHints) {
  HintCalibration calibration(5000);
  Rng rng(1);
  const uint8_t bin = HintCalibration::Bin(0.9);
  EXPECT_NEAR(calibration.Blend(0, bin, 0.02), 0.02, 1e-12) << "nothing learnt: survival";
  // Hints of 0.9 are right three times in ten.
  for (int i = 0; i < 5000; ++i) calibration.Observe(0, bin, 0.02, rng.Uniform() < 0.3);
  EXPECT_NEAR(calibration.Blend(0, bin, 0.02), 0.3, 0.04);
  EXPECT_NEAR(calibration.Blend(1, bin, 0.02), 0.02, 1e-12) << "of other lags nothing is known";
}

TEST(Calibration, FollowsHintsThatChangeTheirMeaningOrBecomeReliableAgain) {
  const uint8_t bin = HintCalibration::Bin(0.5);
  HintCalibration changes(500);
  for (int i = 0; i < 3000; ++i) changes.Observe(0, bin, 0.02, true);
  EXPECT_GT(changes.Blend(0, bin, 0.02), 0.95);
  for (int i = 0; i < 3000; ++i) changes.Observe(0, bin, 0.02, i % 50 == 0);
  EXPECT_NEAR(changes.Blend(0, bin, 0.02), 0.02, 0.01);
  HintCalibration again(20);
  // Outcomes alternate as soon as they have been learnt: survival's even odds are the better prediction.
  for (int i = 0; i < 6000; ++i) again.Observe(0, bin, 0.5, (i / 8) % 2 == 0);
  EXPECT_NEAR(again.Blend(0, bin, 0.5), 0.5, 0.02);
  for (int i = 0; i < 80; ++i) again.Observe(0, bin, 0.5, true);
  EXPECT_GT(again.Blend(0, bin, 0.5), 0.8);
}

TEST(Hint, HintsSharpenTheStepsThatTheyConcern) {
  Race last([](int64_t left, Rng& rng) { return left == 1 ? 0.7 : 0.01 * rng.Uniform(); });
  last.Run(1500);
  EXPECT_GT(last.Gain(1, 100), 0.4);
  EXPECT_GT(last.Gain(10, 100), 0.02);
  Race early([](int64_t left, Rng&) { return left <= 12 ? 0.05 : 0.001; });
  early.Run(1500);
  EXPECT_GT(early.Gain(1, 100), 0.1);
  EXPECT_GT(early.Gain(8, 100), 0.3);
  EXPECT_GT(early.Gain(30, 100), 0.1);
}

TEST(Hint, UselessHintsAreNoWorseThanNone) {
  Race race([](int64_t, Rng& rng) { return rng.Uniform(); });
  // From the first step on, during learning.
  for (const int32_t h : {1, 8, 30, 1, 8, 30}) EXPECT_GT(race.Gain(h, 300), -0.004) << "h " << h;
}

TEST(Hint, WrongAndAlternatingHintsAreHardlyWorseThanNone) {
  const Population::Hints upside_down = [](int64_t left, Rng&) { return left <= 2 ? 0.0001 : 0.9; };
  const Population::Hints right = [](int64_t left, Rng&) { return left <= 2 ? 0.9 : 0.0001; };
  Race race(upside_down);
  race.Run(1500);
  EXPECT_GT(race.Gain(1, 100), 0.2) << "reliably wrong is as good as right";
  for (Population* people : {&race.with_survival, &race.with_hint}) people->set_hints(right);
  race.Run(1500);
  EXPECT_GT(race.Gain(1, 100), 0.2);
  // Every hundred steps a random draw decides whether hints are inverted.
  Rng coin(3);
  double total = 0;
  for (int i = 0; i < 20; ++i) {
    const bool flip = coin.Below(2) == 0;
    for (Population* people : {&race.with_survival, &race.with_hint})
      people->set_hints(flip ? right : upside_down);
    total += race.Gain(1, 100);
  }
  EXPECT_GT(total / 20, -0.1);
}

TEST(Hint, WithoutHintsItEqualsSurvival) {
  Race race({});
  race.Run(800);
  for (const int64_t age : {0, 10, 100})
    EXPECT_EQ(AliveFrom(race.hint, age, 30), AliveFrom(race.survival, age, 30));
}

TEST(Hint, StaleHintsAreForgotten) {
  Race race([](int64_t left, Rng&) { return left <= 3 ? 0.8 : 0.001; });
  race.Run(1000);
  Resident resident = {.first_step = 1, .max_new_tokens = 10'000, .group = race.hint.GroupOf(0, 10)};
  HintTrail trail;
  race.hint.Hint(resident, trail, 10, 0.8);
  std::vector<double> fresh = Alive(race.hint, resident, {10, 11}, 5);
  EXPECT_LT(fresh[5], 0.2);
  const std::vector<double> stale = Alive(race.hint, resident, {200, 201}, 5),
                            none = AliveFrom(race.hint, 200, 5);
  for (int h = 0; h <= 5; ++h) EXPECT_NEAR(stale[h], none[h], 1e-12);
  // Pipelined, one step after the last hint: the projection is conditioned on the tokens generated since.
  fresh = Alive(race.hint, resident, {11, 13}, 5);
  EXPECT_LT(fresh[3], 0.5);
  EXPECT_GT(fresh[0], fresh[3]);
}

// No observed request exceeds a few tokens: survival is 0 within the reach of a hint, where quotients of
// survival probabilities are undefined.
TEST(Hint, ProjectionsStayProbabilitiesWhereNobodyIsLeft) {
  LookaheadOptions options = {.prior_mean_tokens = 1};
  options.prior_requests = options.pool_requests = 1e9;
  HintLookahead hint(options);
  const Resident fresh = {
      .first_step = 1, .prefill_tokens = 10, .max_new_tokens = 10'000, .group = hint.GroupOf(0, 10)};
  const auto expect_probabilities = [&](const Resident& resident, int64_t age) {
    for (const double alive : Alive(hint, resident, {age, age + 1}, 30))
      EXPECT_TRUE(alive >= 0 && alive <= 1) << "age " << age << ": " << alive;
  };
  // One observation at a high age, so that survival reaches 0 within the table and not only beyond it.
  hint.Observe(fresh, {}, 100, 101, false);
  for (int i = 0; i < 100; ++i) hint.Advance();
  for (const double probability : {0.001, 0.3, 0.99}) {
    for (const int64_t age : {0, 3, 15, 21, 30, 500}) {
      Resident resident = fresh;
      HintTrail trail;
      hint.Hint(resident, trail, age, probability);
      for (const int64_t past : {0, 1, 20, 63}) expect_probabilities(resident, age + past);
      hint.Hint(resident, trail, age + 70, probability);
      hint.Observe(resident, trail, age, age + 100, true);
    }
    Resident young = fresh;
    HintTrail trail;
    hint.Hint(young, trail, 2, probability);
    expect_probabilities(young, 2);
  }
}

// --- fixed lengths ---

// Predicted lengths taken as exact, and requests that outlive their prediction.

// A request that has outlived its prediction still counts at the plan's step. Its expected remaining time
// grows with the overrun and never exceeds its limit.
TEST(Oracle, ARequestThatOutlivesItsPredictionStillCounts) {
  FixedLengthLookahead lookahead(FixedLengthLookahead::Kind::kOracle);
  constexpr int64_t kLimit = 60, kPrompt = 100;
  const std::vector<int64_t> steps = {0, 1, 5};
  std::vector<double> alive(steps.size());
  for (const int64_t predicted : {1, 7, 20}) {
    for (const int64_t ahead : {1, 2, 5}) {
      int64_t last_end = 0;
      for (int64_t reported = 1; reported < kLimit; ++reported) {
        SCOPED_TRACE(::testing::Message() << predicted << " predicted, " << reported << " made");
        Resident resident = {.id = 1,
                             .first_step = 1,
                             .prefill_tokens = kPrompt,
                             .max_new_tokens = kLimit,
                             .expected_tokens = predicted};
        const PlanTime time = {reported, reported + ahead};
        // Steps that the request may still run by its limit.
        const int64_t left = kLimit - (reported + ahead - 1);
        const int64_t stay = lookahead.Lifetime(resident, time, steps, absl::MakeSpan(alive));
        if (reported < predicted) {
          EXPECT_EQ(stay, std::max<int64_t>(0, predicted - (reported + ahead - 1)));
          continue;
        }
        EXPECT_GE(stay, std::min<int64_t>(1, std::max<int64_t>(0, left)));
        EXPECT_LE(stay, std::max<int64_t>(0, left));
        const int64_t end = reported + ahead + stay;
        EXPECT_GE(end, std::min(last_end, kLimit + 1));
        last_end = end;
        std::vector<double> load(3);
        lookahead.Project({&resident, 1}, time, absl::MakeSpan(load));
        EXPECT_EQ(load[0], left > 0 ? static_cast<double>(kPrompt + reported + ahead - 1) : 0);
      }
    }
  }
}

// --- the registry ---

TEST(LookaheadRegistry, EveryNameMakesALookaheadOfThatName) {
  for (const LookaheadInfo& info : RegisteredLookaheads()) {
    const auto lookahead = MakeLookahead(info.name);
    ASSERT_TRUE(lookahead.ok()) << lookahead.status();
    EXPECT_EQ((*lookahead)->name(), info.name);
    EXPECT_EQ((*lookahead)->predicts(), info.name != "none");
    EXPECT_FALSE(info.summary.empty());
  }
}

TEST(LookaheadRegistry, AnUnknownNameIsRefused) {
  EXPECT_EQ(MakeLookahead("psychic").status().message(),
            "lookahead 'psychic' is unknown, choose one of none, survival, hint, max_tokens, oracle");
}

}  // namespace
}  // namespace bfio::core
