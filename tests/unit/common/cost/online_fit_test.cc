// The online fit of step costs against exact least squares over the same steps, and against known costs.
#include "common/cost/online_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/rng.h"

namespace bfio {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Step {
  int64_t load = 0, prefill = 0;
  double local_s = 0;
};

// Weighted sum of squared residuals of the costs `b` over all steps; the weight of the step k before the last
// is forget^k.
double Squares(const std::vector<Step>& steps, double forget, const std::array<long double, 3>& b) {
  long double sum = 0, weight = 1;
  for (size_t i = steps.size(); i-- > 0; weight *= forget) {
    const long double r = steps[i].local_s - b[0] - b[1] * steps[i].load - b[2] * steps[i].prefill;
    sum += weight * r * r;
  }
  return static_cast<double>(sum);
}

// Weighted least squares of the columns in `use` by Gaussian elimination in long double, over all steps at
// once.
std::array<long double, 3> Oracle(const std::vector<Step>& steps, double forget, std::array<bool, 3> use) {
  long double a[3][4] = {};
  long double weight = 1;
  // Loads are taken relative to one step's, otherwise a load that hardly varies is numerically equal to the
  // constant.
  const long double at = use[0] ? steps[0].load : 0;
  for (size_t i = steps.size(); i-- > 0; weight *= forget) {
    const long double x[4] = {1, steps[i].load - at, static_cast<long double>(steps[i].prefill),
                              steps[i].local_s};
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) {
        if (use[j] && (k == 3 || use[k])) a[j][k] += weight * x[j] * x[k];
      }
    }
  }
  for (int j = 0; j < 3; ++j) {
    if (!use[j]) a[j][j] = 1;
  }
  for (int k = 0; k < 3; ++k) {
    for (int i = 0; i < 3; ++i) {
      if (i == k) continue;
      const long double f = a[i][k] / a[k][k];
      for (int j = 0; j < 4; ++j) a[i][j] -= f * a[k][j];
    }
  }
  std::array<long double, 3> b = {a[0][3] / a[0][0], a[1][3] / a[1][1], a[2][3] / a[2][2]};
  b[0] -= b[1] * at;
  return b;
}

// Least squares with non-negative coefficients: the best feasible solution among the eight subsets of
// columns.
std::array<long double, 3> ConstrainedOracle(const std::vector<Step>& steps, double forget) {
  std::array<long double, 3> best = {};
  double least = kInfinity;
  for (int face = 0; face < 8; ++face) {
    const auto b = Oracle(steps, forget, {(face & 1) == 0, (face & 2) == 0, (face & 4) == 0});
    if (b[0] < 0 || b[1] < 0 || b[2] < 0) continue;
    const double squares = Squares(steps, forget, b);
    if (squares < least) least = squares, best = b;
  }
  return best;
}

// Generates steps: loads in a random walk, prefill tokens in some steps, noise in proportion to the time.
struct World {
  double c = 0.005, tl = 1e-7, cp = 3e-7;
  double noise = 0.01;
  int64_t load = 40'000;

  Step Next(Rng& rng) {
    load = std::max<int64_t>(0, load + static_cast<int64_t>(4'000 * rng.Normal()));
    Step step{load, rng.Below(3) == 0 ? static_cast<int64_t>(rng.Below(4'000)) : 0, 0};
    step.local_s = (c + tl * static_cast<double>(load) + cp * static_cast<double>(step.prefill)) *
                   (1 + noise * std::clamp(rng.Normal(), -3.0, 3.0));
    return step;
  }
};

bool Add(OnlineStepFit& fit, const Step& step) {
  return fit.Add(step.load, step.prefill, step.local_s);
}
void AddSteps(OnlineStepFit& fit, World& world, Rng& rng, int count) {
  for (int i = 0; i < count; ++i) ASSERT_TRUE(Add(fit, world.Next(rng)));
}

TEST(OnlineFit, IsExactWeightedLeastSquares) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    World world;
    // Some loads are far from zero and vary little, where plain sums of squares lose precision.
    world.load = rng.Below(2) == 0 ? 50'000 : 800'000'000;
    if (world.load > 1'000'000) world.tl = 1e-11;
    world.noise = 0.2 * rng.Uniform();
    const double memory = 64 + static_cast<double>(rng.Below(2'000));
    OnlineStepFit fit({.memory_steps = memory, .cut = kInfinity});
    std::vector<Step> steps;
    const size_t blocks = 3 + rng.Below(30);
    while (steps.size() < blocks * OnlineStepFit::kBlock) {
      steps.push_back(world.Next(rng));
      ASSERT_TRUE(Add(fit, steps.back()));
    }
    const StepCostEstimate& found = fit.estimate();
    ASSERT_EQ(found.steps, static_cast<int64_t>(steps.size()));
    if (!found.tl || !found.prefill || !found.c) continue;  // too little variation in some
    ++compared;
    const auto exact = ConstrainedOracle(steps, 1 - 1 / memory);
    const double mean = static_cast<double>(exact[0] + exact[1] * steps.back().load);
    EXPECT_NEAR(found.c->value, static_cast<double>(exact[0]), 1e-7 * mean) << seed;
    EXPECT_NEAR(found.tl->value, static_cast<double>(exact[1]), 1e-7 * static_cast<double>(exact[1])) << seed;
    EXPECT_NEAR(found.prefill->value, static_cast<double>(exact[2]), 1e-7 * 3e-7) << seed;
  }
  EXPECT_GT(compared, 80);
}

TEST(OnlineFit, CostsAreNonNegativeAtTheLeastSquaresOptimum) {
  int bound = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    // Costs near zero under noise: unconstrained least squares would make many of them negative.
    World world{.c = rng.Below(2) == 0 ? 0 : 1e-3,
                .tl = rng.Below(2) == 0 ? 0 : 1e-8,
                .cp = rng.Below(2) == 0 ? 0 : 1e-7,
                .noise = 0};
    OnlineStepFit fit({.memory_steps = 500, .cut = kInfinity});
    std::vector<Step> steps;
    for (int i = 0; i < 4 * OnlineStepFit::kBlock; ++i) {
      Step& step = steps.emplace_back(world.Next(rng));
      step.local_s = std::max(0.0, step.local_s + 3e-4 * rng.Normal());
      ASSERT_TRUE(Add(fit, step));
    }
    const StepCostEstimate& found = fit.estimate();
    ASSERT_TRUE(found.c && found.tl && found.prefill);
    const std::array<long double, 3> costs = {found.c->value, found.tl->value, found.prefill->value};
    EXPECT_GE(*std::min_element(costs.begin(), costs.end()), 0);
    const double forget = 1 - 1.0 / 500;
    const double best = Squares(steps, forget, ConstrainedOracle(steps, forget));
    EXPECT_LE(Squares(steps, forget, costs), best * (1 + 1e-9)) << seed;
    bound += std::count(costs.begin(), costs.end(), 0) > 0;
  }
  EXPECT_GT(bound, 30);
}

// Each estimate is within 4.5 standard errors of the true cost, and the standard errors are of the right
// size.
TEST(OnlineFit, StandardErrorsAreOfTheRightSize) {
  double squares[3] = {};
  constexpr int kRuns = 200;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    Rng rng(1'000 + seed);
    World world{.noise = 0.02};
    OnlineStepFit fit({.memory_steps = 1e9});
    AddSteps(fit, world, rng, 1'024);
    const StepCostEstimate& found = fit.estimate();
    ASSERT_TRUE(found.c && found.tl && found.prefill);
    const double z[3] = {(found.c->value - world.c) / found.c->standard_error,
                         (found.tl->value - world.tl) / found.tl->standard_error,
                         (found.prefill->value - world.cp) / found.prefill->standard_error};
    for (int j = 0; j < 3; ++j) {
      EXPECT_LT(std::abs(z[j]), 4.5) << seed << " " << j;
      squares[j] += z[j] * z[j] / kRuns;
    }
    EXPECT_NEAR(found.residual_s, 0.02 * (world.c + 1e-7 * 60'000), 0.02 * 0.02);
  }
  for (const double s : squares) {
    EXPECT_GT(s, 0.6);
    EXPECT_LT(s, 1.6);
  }
}

TEST(OnlineFit, OutlierStepsDoNotDistortTheFit) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    World world;
    OnlineStepFit fit;
    int wild = 0;
    for (int i = 0; i < 1'600; ++i) {
      Step step = world.Next(rng);
      // Outliers occur from the first block on.
      if (rng.Below(12) == 0) step.local_s += std::pow(10.0, -3 + 5 * rng.Uniform()), ++wild;
      ASSERT_TRUE(Add(fit, step));
    }
    const StepCostEstimate& found = fit.estimate();
    ASSERT_TRUE(found.c && found.tl && found.prefill);
    EXPECT_NEAR(found.c->value, world.c, 0.04 * world.c);
    EXPECT_NEAR(found.tl->value, world.tl, 0.04 * world.tl);
    EXPECT_NEAR(found.prefill->value, world.cp, 0.08 * world.cp);
    EXPECT_GT(found.outliers, wild / 2);
    EXPECT_LT(found.outliers, wild + 100);
  }
}

TEST(OnlineFit, ChangesOfTheCostAreFollowed) {
  for (const double factor : {3.0, 1.3, 0.5}) {
    SCOPED_TRACE(factor);
    Rng rng(7);
    World world;
    OnlineStepFit fit({.memory_steps = 400});
    AddSteps(fit, world, rng, 2'000);
    world.tl *= factor;
    world.c *= factor;
    AddSteps(fit, world, rng, 4'000);
    ASSERT_TRUE(fit.estimate().tl && fit.estimate().c);
    EXPECT_NEAR(fit.estimate().tl->value, world.tl, 0.03 * world.tl);
    EXPECT_NEAR(fit.estimate().c->value, world.c, 0.05 * world.c);
  }
}

TEST(OnlineFit, UndeterminedCostsAreAbsent) {
  Rng rng(3);
  const auto fitted = [](auto step) {
    OnlineStepFit fit;
    for (int i = 0; i < 640; ++i) EXPECT_TRUE(Add(fit, step()));
    return fit.estimate();
  };
  const auto same = fitted([&] { return Step{50'000, 0, 0.01 * (1 + 0.01 * rng.Normal())}; });
  EXPECT_FALSE(same.c || same.tl || same.prefill);
  EXPECT_EQ(same.steps, 640);
  const auto idle = fitted([] { return Step{0, 0, 0.01}; });
  EXPECT_FALSE(idle.c || idle.tl);
  // Prefill in proportion to the load: the two columns cannot be told apart.
  const auto together = fitted([&] {
    const auto load = static_cast<int64_t>(10'000 + rng.Below(50'000));
    return Step{load, load / 10, 0.005 + 1e-7 * static_cast<double>(load)};
  });
  ASSERT_TRUE(together.tl.has_value());
  EXPECT_FALSE(together.prefill.has_value());
  EXPECT_NEAR(together.tl->value, 1e-7, 1e-9);
  OnlineStepFit young;
  World world;
  AddSteps(young, world, rng, OnlineStepFit::kBlock);
  EXPECT_FALSE(young.estimate().tl.has_value()) << "too few steps";
}

TEST(OnlineFit, EstimatesWithoutFreshDataAreForgotten) {
  Rng rng(5);
  World world;
  OnlineStepFit fit({.memory_steps = 200});
  AddSteps(fit, world, rng, 640);
  ASSERT_TRUE(fit.estimate().tl && fit.estimate().prefill);
  for (int i = 0; i < 6'400; ++i) ASSERT_TRUE(fit.Add(40'000, 0, 0.009 * (1 + 0.01 * rng.Normal())));
  EXPECT_FALSE(fit.estimate().tl || fit.estimate().prefill);
  AddSteps(fit, world, rng, 640);
  EXPECT_TRUE(fit.estimate().tl && fit.estimate().prefill);
}

TEST(OnlineFit, InvalidStepsAreRefusedAndChangeNothing) {
  constexpr int64_t kTooMany = std::numeric_limits<int64_t>::max();
  Rng rng(11);
  World world;
  OnlineStepFit fit, undisturbed;
  for (int i = 0; i < 960; ++i) {
    const Step step = world.Next(rng);
    for (const double seconds : {std::nan(""), kInfinity, -1e-9, 1e9})
      EXPECT_FALSE(fit.Add(step.load, step.prefill, seconds));
    for (const auto& [load, prefill] :
         {std::pair{int64_t{-1}, int64_t{0}}, {0, -1}, {kTooMany, 0}, {0, kTooMany}})
      EXPECT_FALSE(fit.Add(load, prefill, step.local_s));
    ASSERT_TRUE(Add(fit, step));
    ASSERT_TRUE(Add(undisturbed, step));
  }
  ASSERT_TRUE(fit.estimate().tl.has_value());
  EXPECT_EQ(fit.estimate().tl->value, undisturbed.estimate().tl->value);
  EXPECT_EQ(fit.estimate().c->standard_error, undisturbed.estimate().c->standard_error);
}

// Whatever valid steps are added, the estimates are finite.
TEST(OnlineFit, ExtremesStayFinite) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    OnlineStepFit fit({.memory_steps = 2 + static_cast<double>(rng.Below(100))});
    for (int i = 0; i < 320; ++i) {
      const int64_t load = rng.Below(4) == 0 ? OnlineStepFit::kMaxTokens
                                             : static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(41)));
      const int64_t prefill = rng.Below(3) == 0 ? static_cast<int64_t>(rng.Below(uint64_t{1} << 40)) : 0;
      const double local = rng.Below(3) == 0   ? 0
                           : rng.Below(5) == 0 ? OnlineStepFit::kMaxSeconds
                                               : 1e-300 * std::pow(10, 300 * rng.Uniform());
      ASSERT_TRUE(fit.Add(load, prefill, local));
      const StepCostEstimate& found = fit.estimate();
      EXPECT_TRUE(std::isfinite(found.residual_s));
      for (const auto& value : {found.c, found.tl, found.prefill}) {
        if (!value) continue;
        EXPECT_TRUE(std::isfinite(value->value) && value->value >= 0) << seed;
        EXPECT_TRUE(std::isfinite(value->standard_error) && value->standard_error >= 0) << seed;
      }
    }
  }
}

}  // namespace
}  // namespace bfio
