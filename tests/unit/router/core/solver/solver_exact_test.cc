// The solver against exhaustive search, on every small instance of a grid and on random ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"
#include "router/core/solver/solver.h"
#include "tests/testing/exhaustive.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

void ExpectOptimal(const Instance& instance, ObjectiveKind kind) {
  const SolverSettings settings = {.objective = kind};
  Solver solver(settings);
  const Solution& solution = solver.Solve(instance);
  const double ours = Evaluate(instance, settings, solution);
  const ExactAnswer best = SolveExhaustively(instance, settings);
  ASSERT_EQ(Infeasibility(instance, solution), "");
  ASSERT_EQ(static_cast<int64_t>(instance.items.size()) -
                std::count(solution.worker_of.begin(), solution.worker_of.end(), kUnassigned),
            best.admitted);
  ASSERT_NEAR(ours, best.objective, 2e-3 + 1e-9 * std::abs(best.objective));
}

class SolverExactTest : public ::testing::TestWithParam<ObjectiveKind> {};
INSTANTIATE_TEST_SUITE_P(Objectives, SolverExactTest, EveryObjective(), ObjectiveName);

// Every other instance has few different loads, so that many choices are equally good.
TEST_P(SolverExactTest, RandomSmallInstancesAreSolvedToOptimality) {
  Rng rng(20240611);
  SolverCaseLimits limits = {.max_workers = 3, .max_items = 6};
  for (int trial = 0; trial < 6000; ++trial) {
    limits.max_load = trial % 2 == 0 ? 1000 : 6;
    ASSERT_NO_FATAL_FAILURE(ExpectOptimal(RandomInstance(limits, rng), GetParam())) << "trial " << trial;
  }
}

TEST_P(SolverExactTest, OneFreeSlotInALargePoolIsSolvedToOptimality) {
  Rng rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    Instance instance = {.workers = {{5000, 0, 0, kAmple},
                                     {static_cast<int64_t>(3000 + rng.Below(3000)), 0, 1, kAmple},
                                     {4800, 0, 0, kAmple}}};
    for (int i = 0; i < 60; ++i) {
      instance.items.push_back({static_cast<int64_t>(1 + rng.Below(3000)), 1, 0, 1e5 * rng.Uniform()});
    }
    instance.target_load = 5200;
    AddHorizon(instance, static_cast<int32_t>(rng.Below(4)), 3, trial % 2 == 0, rng);
    ASSERT_NO_FATAL_FAILURE(ExpectOptimal(instance, GetParam()));
  }
}

}  // namespace
}  // namespace bfio::core
