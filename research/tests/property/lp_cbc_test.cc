// Exported instances, solved by CBC: the file describes the instance, and the solver is close to the optimum.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "research/solver/cbc.h"
#include "research/solver/lp_export.h"
#include "router/core/solver/solver.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

constexpr double kSeconds = 20;

SolverSettings Paper() {
  SolverSettings settings;
  settings.objective = ObjectiveKind::kPaper;
  return settings;
}

class LpCbcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::HaveCbc()) GTEST_SKIP() << "no cbc on the path (Debian: coinor-cbc)";
  }
};

// Sets `value` to J* by CBC; checks that CBC's choice is feasible and has this value by the objective's
// definition.
void Optimum(const Instance& instance, absl::Span<const int64_t> admit, double& value) {
  std::string lp;
  ASSERT_TRUE(sim::AppendLp(instance, ObjectiveKind::kPaper, {admit}, lp).ok());
  const auto answer = testing::SolveWithCbc(lp, instance, kSeconds);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_TRUE(answer->optimal) << lp;
  value = Evaluate(instance, Paper(), answer->solution);
}

TEST_F(LpCbcTest, OnSmallInstancesCbcTheExhaustiveAnswerAndTheSolverAgree) {
  Rng rng(31);
  SolverCaseLimits limits;
  limits.max_workers = 3;
  limits.max_items = 6;
  int solved = 0;
  for (int trial = 0; solved < 24; ++trial) {
    const Instance instance = RandomInstance(limits, rng);
    const ExactAnswer exact = SolveExhaustively(instance, Paper());
    if (exact.admitted == 0) continue;
    double value = 0;
    ASSERT_NO_FATAL_FAILURE(Optimum(instance, exact.admitted_by_class, value)) << "trial " << trial;
    EXPECT_NEAR(value, exact.objective, 1e-2 + 1e-6 * std::abs(exact.objective)) << "trial " << trial;
    EXPECT_NEAR(Evaluate(instance, Paper(), Solver(Paper()).Solve(instance)), exact.objective, 1e-2)
        << "trial " << trial;
    ++solved;
  }
}

// A group of 8 in overload, 40 waiting.
Instance Overload(int32_t horizon, Rng& rng) {
  Instance instance;
  for (int g = 0; g < 8; ++g) {
    const auto free = static_cast<int32_t>(g < 4 ? 1 : 0);
    instance.workers.push_back(
        {80'000 + static_cast<int64_t>(500 * rng.Normal()) - 1'400 * free, 0, free, kAmple});
  }
  for (int i = 0; i < 40; ++i) {
    const auto load = static_cast<int64_t>(1 + rng.Gamma(0.8) * 1'200);
    instance.items.push_back({load, load});
  }
  if (horizon == 0) return instance;
  instance.horizon = horizon;
  for (const WorkerView& worker : instance.workers) {
    double load = static_cast<double>(worker.load_tokens);
    for (int32_t h = 0; h <= horizon; ++h) {
      instance.ahead.push_back(load);
      load += 72 - (rng.Below(3) == 0 ? static_cast<double>(rng.Below(2'000)) : 0);
    }
  }
  for (int32_t c = 0; c <= horizon; ++c) {
    for (int32_t h = 0; h <= horizon; ++h) instance.curves.push_back(h <= c ? 1 : 0);
  }
  for (SolverItem& item : instance.items)
    item.curve = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(horizon) + 1));
  return instance;
}

TEST_F(LpCbcTest, InOverloadTheSolverIsNeverBelowCbcAndNearIt) {
  Rng rng(5);
  for (int32_t horizon : {0, 0, 5, 5}) {
    const Instance instance = Overload(horizon, rng);
    double best = 0;
    ASSERT_NO_FATAL_FAILURE(Optimum(instance, {}, best));
    const double ours = Evaluate(instance, Paper(), Solver(Paper()).Solve(instance));
    EXPECT_GE(ours, best - 1e-2);
    // Relative to (J - J*) / (G max L).
    EXPECT_LE((ours - best) / (8 * 80'000), 0.05);
  }
}

}  // namespace
}  // namespace bfio::core
