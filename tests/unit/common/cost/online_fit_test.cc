// Least squares without negative costs, and the online fit of step costs against known costs.
#include "common/cost/online_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
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

// Costs near zero under noise: least squares without bounds would make many of them negative. The optimum
// over the bounds is at least as good as the true costs, and as the best ones with a term left out.
TEST(LeastSquares, CostsAreNonNegativeAtTheOptimum) {
  int bound = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    World world{.c = rng.Below(2) == 0 ? 0 : 1e-3,
                .tl = rng.Below(2) == 0 ? 0 : 1e-8,
                .cp = rng.Below(2) == 0 ? 0 : 1e-7,
                .noise = 0};
    // Some loads are far from zero and vary little, where plain sums of squares lose precision.
    if (rng.Below(2) == 0) world.load = 800'000'000;
    Moments moments;
    std::vector<Moments::Vector> steps;
    for (int i = 0; i < 128; ++i) {
      const Step step = world.Next(rng);
      steps.push_back({static_cast<double>(step.load), static_cast<double>(step.prefill),
                       std::max(0.0, step.local_s + 3e-4 * rng.Normal())});
      moments.Add(steps.back(), 1);
    }
    const auto squares = [&](const Line<2>& line) {
      double sum = 0;
      for (const Moments::Vector& step : steps) sum += std::pow(step[2] - line.At(step), 2);
      return sum;
    };
    const Line<2> found = FitLine(moments, 3);
    EXPECT_GE(std::min({found.c, found.slopes[0], found.slopes[1]}), 0);
    EXPECT_NEAR(squares(found) / found.rest, 1, 1e-6) << seed;
    for (const unsigned terms : {0, 1, 2})
      EXPECT_LE(found.rest, 1.0001 * FitLine(moments, terms).rest) << seed;
    EXPECT_LE(found.rest, 1.0001 * squares({.c = world.c, .slopes = {world.tl, world.cp}})) << seed;
    bound += found.c == 0 || found.slopes[0] == 0 || found.slopes[1] == 0;
  }
  EXPECT_GT(bound, 30);
}

// Each estimate is within 4.5 standard errors of the true cost, and these are of the right size.
TEST(OnlineFit, StandardErrorsAreOfTheRightSize) {
  double squares[2] = {};
  constexpr int kRuns = 200;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    Rng rng(1'000 + seed);
    World world{.noise = 0.02};
    OnlineStepFit fit(1e9);
    AddSteps(fit, world, rng, 1'024);
    const StepCostEstimate& found = fit.estimate();
    ASSERT_TRUE(found.c && found.tl);
    const double z[2] = {(found.c->value - world.c) / found.c->standard_error,
                         (found.tl->value - world.tl) / found.tl->standard_error};
    for (int j = 0; j < 2; ++j) {
      EXPECT_LT(std::abs(z[j]), 4.5) << seed << " " << j;
      squares[j] += z[j] * z[j] / kRuns;
    }
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
    for (int i = 0; i < 1'600; ++i) {
      Step step = world.Next(rng);
      // Outliers occur from the first block on.
      if (rng.Below(12) == 0) step.local_s += std::pow(10.0, -3 + 5 * rng.Uniform());
      ASSERT_TRUE(Add(fit, step));
    }
    const StepCostEstimate& found = fit.estimate();
    ASSERT_TRUE(found.c && found.tl);
    EXPECT_NEAR(found.c->value, world.c, 0.04 * world.c);
    EXPECT_NEAR(found.tl->value, world.tl, 0.04 * world.tl);
  }
}

TEST(OnlineFit, ChangesOfTheCostAreFollowed) {
  for (const double factor : {3.0, 1.3, 0.5}) {
    SCOPED_TRACE(factor);
    Rng rng(7);
    World world;
    OnlineStepFit fit(400);
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
  EXPECT_FALSE(same.c || same.tl);
  const auto idle = fitted([] { return Step{0, 0, 0.01}; });
  EXPECT_FALSE(idle.c || idle.tl);
  // Prefill in proportion to the load: the two columns cannot be told apart.
  const auto together = fitted([&] {
    const auto load = static_cast<int64_t>(10'000 + rng.Below(50'000));
    return Step{load, load / 10, 0.005 + 1e-7 * static_cast<double>(load)};
  });
  ASSERT_TRUE(together.tl.has_value());
  EXPECT_NEAR(together.tl->value, 1e-7, 1e-9);
  OnlineStepFit young;
  World world;
  AddSteps(young, world, rng, OnlineStepFit::kBlock);
  EXPECT_FALSE(young.estimate().tl.has_value()) << "too few steps";
}

TEST(OnlineFit, EstimatesWithoutFreshDataAreForgotten) {
  Rng rng(5);
  World world;
  OnlineStepFit fit(200);
  AddSteps(fit, world, rng, 640);
  ASSERT_TRUE(fit.estimate().tl);
  for (int i = 0; i < 6'400; ++i) ASSERT_TRUE(fit.Add(40'000, 0, 0.009 * (1 + 0.01 * rng.Normal())));
  EXPECT_FALSE(fit.estimate().tl.has_value());
  AddSteps(fit, world, rng, 640);
  EXPECT_TRUE(fit.estimate().tl);
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
    OnlineStepFit fit(2 + static_cast<double>(rng.Below(100)));
    for (int i = 0; i < 320; ++i) {
      const int64_t load = rng.Below(4) == 0 ? OnlineStepFit::kMaxTokens
                                             : static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(41)));
      const int64_t prefill = rng.Below(3) == 0 ? static_cast<int64_t>(rng.Below(uint64_t{1} << 40)) : 0;
      const double local = rng.Below(3) == 0   ? 0
                           : rng.Below(5) == 0 ? OnlineStepFit::kMaxSeconds
                                               : 1e-300 * std::pow(10, 300 * rng.Uniform());
      ASSERT_TRUE(fit.Add(load, prefill, local));
      const StepCostEstimate& found = fit.estimate();
      for (const auto& value : {found.c, found.tl}) {
        if (!value) continue;
        EXPECT_TRUE(std::isfinite(value->value) && value->value >= 0) << seed;
        EXPECT_TRUE(std::isfinite(value->standard_error) && value->standard_error >= 0) << seed;
      }
    }
  }
}

}  // namespace
}  // namespace bfio
