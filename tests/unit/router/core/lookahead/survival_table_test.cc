// P(length > age) far beyond the oldest age that was seen.
#include "router/core/lookahead/survival_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "router/core/lookahead/survival.h"
#include "tests/unit/router/core/lookahead/population.h"

namespace bfio::core {
namespace {

// E[exp(-hazard * steps)] over the gamma posterior of the hazard, by the midpoint rule.
double Predicted(const SurvivalTable::Tail& tail, double steps) {
  const double shape = tail.endings, scale = tail.hazard / shape;
  constexpr int kParts = 200'000;
  const double most = tail.hazard * (1 + 40 / std::sqrt(shape) + 40 / shape);
  double sum = 0, mass = 0;
  for (int i = 0; i < kParts; ++i) {
    const double hazard = most * (i + 0.5) / kParts;
    const double density =
        std::exp((shape - 1) * std::log(hazard / scale) - hazard / scale - std::lgamma(shape));
    mass += density;
    sum += density * std::exp(-hazard * steps);
  }
  return sum / mass;
}

TEST(SurvivalTable, BeyondItsReachItIsThePredictionOfTheTailsPosterior) {
  for (const double endings : {1.0, 3.0, 12.5, 200.0}) {
    const SurvivalTable::Tail tail{.hazard = 1e-3, .endings = endings};
    SurvivalTable table;
    const std::vector<double> hazards(40, 0.01);
    table.Build(AgeLattice(16), hazards, tail);
    const int64_t oldest = AgeLattice(16).First(40) - 1, reach = oldest + SurvivalTable::kReach;
    const double at_reach = table.SurvivalProbability(0, reach);
    for (const int64_t beyond : {1, 17, 300, 4'000, 50'000, 900'000}) {
      const double p = table.SurvivalProbability(0, reach + beyond) / at_reach;
      EXPECT_GE(p, 0.999 * Predicted(tail, static_cast<double>(beyond))) << endings << " " << beyond;
      EXPECT_LE(p, 1.001 * Predicted(tail, static_cast<double>(beyond) * 7 / 8)) << endings << " " << beyond;
    }
  }
}

TEST(SurvivalTable, NeverRisesAndStaysAProbabilityWhateverTheTail) {
  for (const double hazard : {0.0, 1e-9, 0.3, 1 - 1e-9}) {
    for (const double endings : {1e-3, 1.0, 1e6}) {
      SurvivalTable table;
      table.Build(AgeLattice(16), std::vector<double>(60, 0.02), {.hazard = hazard, .endings = endings});
      for (const int64_t age : {0, 10, 100'000}) {
        double last = 1;
        for (int64_t ahead = 0; ahead < int64_t{1} << 40; ahead = ahead * 3 / 2 + 1) {
          const double p = table.SurvivalProbability(age, ahead);
          ASSERT_TRUE(p >= 0 && p <= last)
              << hazard << " " << endings << " " << age << " " << ahead << " " << p;
          last = p;
        }
      }
    }
  }
}

TEST(Survival, FewEndingsSayLittleOfLengthsFarBeyondThem) {
  const auto far = [](int endings) {
    SurvivalLookahead lookahead({});
    Resident resident = {.group = lookahead.GroupOf(0, 100)};
    for (int i = 0; i < endings; ++i) lookahead.Observe(resident, {}, 0, 1000 + i % 64 * 16, true);
    lookahead.Advance();
    WaitingView view = {.prefill_tokens = 100, .max_new_tokens = 65'536};
    const std::vector<int64_t> steps = {0, 20'000};
    std::vector<double> alive(2);
    lookahead.Lifetime(view, steps, absl::MakeSpan(alive));
    return alive[1];
  };
  EXPECT_GT(far(2), 1e3 * far(64));
  EXPECT_LT(far(64), 1e-4);
  EXPECT_LT(far(4000), 1e-9);
}

}  // namespace
}  // namespace bfio::core
