// Every plan of the solver is feasible, whatever the instance.
#include <gtest/gtest.h>

#include "common/base/rng.h"
#include "router/core/solver/solver.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

constexpr int kTrials = 100'000;

class SolverProperty : public ::testing::TestWithParam<ObjectiveKind> {};

TEST_P(SolverProperty, PlansAreFeasibleAndRepeatOnRandomInstances) {
  SolverSettings settings;
  settings.objective = GetParam();
  settings.max_evaluations = 20'000;
  Solver solver(settings), twin(settings);
  Rng rng(4711);
  for (int trial = 0; trial < kTrials; ++trial) {
    const Instance instance = RandomInstance({}, rng);
    const Solution& solution = solver.Solve(instance);
    ASSERT_EQ(Infeasibility(instance, solution), "") << "in trial " << trial;
    if (trial % 16 == 0) {
      ASSERT_EQ(solution.worker_of, twin.Solve(instance).worker_of) << "in trial " << trial;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Objectives, SolverProperty,
                         ::testing::Values(ObjectiveKind::kPaper, ObjectiveKind::kSquare,
                                           ObjectiveKind::kRefill),
                         [](const auto& param) {
                           return param.param == ObjectiveKind::kPaper    ? "Paper"
                                  : param.param == ObjectiveKind::kSquare ? "Square"
                                                                          : "Refill";
                         });

}  // namespace
}  // namespace bfio::core
