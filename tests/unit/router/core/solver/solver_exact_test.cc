// The solver against exhaustive search, on every small instance of a grid and on random ones.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"
#include "router/core/solver/solver.h"
#include "tests/testing/exhaustive.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

SolverSettings ExactSettings(ObjectiveKind kind) {
  return {.objective = kind};
}

void ExpectOptimal(const Instance& instance, ObjectiveKind kind) {
  const SolverSettings settings = ExactSettings(kind);
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

// Every pool of up to six items from {1, 4, 9}, on up to three workers with base loads 0, 5, 10 and up to two
// slots.
TEST_P(SolverExactTest, EverySmallInstanceOfAGridIsSolvedToOptimality) {
  int64_t instances = 0;
  for (int g = 1; g <= 3; ++g) {
    for (int slots = 0; slots < (1 << g); ++slots) {
      for (int items = 1; items <= 6; ++items) {
        for (int ones = 0; ones <= items; ++ones) {
          for (int fours = 0; ones + fours <= items; ++fours) {
            Instance instance;
            for (int w = 0; w < g; ++w)
              instance.workers.push_back({5 * w, 0, 1 + ((slots >> w) & 1), kAmple});
            for (int i = 0; i < items; ++i) {
              const int64_t load = i < ones ? 1 : i < ones + fours ? 4 : 9;
              instance.items.push_back({load, load});
            }
            instance.target_load = 12;
            ASSERT_NO_FATAL_FAILURE(ExpectOptimal(instance, GetParam()));
            ++instances;
          }
        }
      }
    }
  }
  EXPECT_GT(instances, 1000);
}

TEST_P(SolverExactTest, RandomSmallInstancesAreSolvedToOptimality) {
  Rng rng(20240611);
  SolverCaseLimits limits = {.max_workers = 3, .max_items = 6};
  for (int trial = 0; trial < 3000; ++trial) {
    ASSERT_NO_FATAL_FAILURE(ExpectOptimal(RandomInstance(limits, rng), GetParam())) << "trial " << trial;
  }
}

TEST_P(SolverExactTest, TheLowerBoundIsNeverAboveTheOptimum) {
  Rng rng(12);
  SolverCaseLimits limits = {.max_workers = 3, .max_items = 6};
  SolverSettings settings = ExactSettings(GetParam());
  settings.bound = true;
  // Too few evaluations for the enumeration, which would return its optimum as the bound.
  settings.max_evaluations = 1;
  Solver solver(settings);
  for (int trial = 0; trial < 3000; ++trial) {
    const Instance instance = RandomInstance(limits, rng);
    const Solution& solution = solver.Solve(instance);
    const SolverStatistics& statistics = solver.statistics();
    const double best = SolveExhaustively(instance, settings).objective;
    ASSERT_TRUE(statistics.lower_bound.has_value() && statistics.objective.has_value());
    ASSERT_LE(*statistics.lower_bound, best + 1e-6 * (1 + std::abs(best))) << "trial " << trial;
    ASSERT_DOUBLE_EQ(*statistics.objective, Evaluate(instance, settings, solution));
  }
}

TEST_P(SolverExactTest, AProvenOptimumHasNoGap) {
  SolverSettings settings = ExactSettings(GetParam());
  settings.bound = true;
  Solver solver(settings);
  Instance instance = {.workers = {{10, 0, 1, kAmple}, {20, 0, 1, kAmple}},
                       .items = {{7, 7}, {9, 9}, {2, 2}}};
  solver.Solve(instance);
  EXPECT_TRUE(solver.statistics().exact);
  EXPECT_EQ(solver.statistics().Gap(), 0);
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

TEST_P(SolverExactTest, TheOrderOfWorkersAndItemsDoesNotChangeTheValue) {
  Rng rng(99);
  SolverCaseLimits limits = {
      .max_workers = 3, .max_items = 6, .max_horizon = 0, .tight_kv = false, .priorities = false};
  const SolverSettings settings = ExactSettings(GetParam());
  for (int trial = 0; trial < 300; ++trial) {
    Instance instance = RandomInstance(limits, rng);
    const double value = Evaluate(instance, settings, Solver(settings).Solve(instance));
    std::reverse(instance.workers.begin(), instance.workers.end());
    std::rotate(instance.items.begin(), instance.items.begin() + (instance.items.size() > 1),
                instance.items.end());
    ASSERT_NEAR(Evaluate(instance, settings, Solver(settings).Solve(instance)), value,
                2e-3 + 1e-9 * std::abs(value));
  }
}

}  // namespace
}  // namespace bfio::core
