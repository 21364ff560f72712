// The solver by hand-made cases; solver_exact_test.cc compares it with the exhaustive answer.
#include "router/core/solver/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "common/base/rng.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

SolverSettings Settings(ObjectiveKind kind) {
  SolverSettings settings;
  settings.objective = kind;
  return settings;
}

// The load that brings every worker to the same level if average items go in: what a policy would ask for.
void AimAtTheMean(Instance& instance) {
  double total = 0, items = 0;
  for (const WorkerView& worker : instance.workers) total += static_cast<double>(worker.load_tokens);
  for (const SolverItem& item : instance.items) items += static_cast<double>(item.load);
  if (!instance.items.empty()) {
    total += items * static_cast<double>(instance.Target()) / static_cast<double>(instance.items.size());
  }
  instance.target_load = total / static_cast<double>(instance.workers.size());
}

// {load, slots} per worker; items with these loads, worth nothing.
Instance Make(const std::vector<std::pair<int64_t, int32_t>>& workers, const std::vector<int64_t>& loads) {
  Instance instance;
  for (const auto& [load, slots] : workers) instance.workers.push_back({load, 0, slots, kAmple});
  for (int64_t load : loads) instance.items.push_back({load, load});
  AimAtTheMean(instance);
  return instance;
}

class SolverTest : public ::testing::TestWithParam<ObjectiveKind> {};
INSTANTIATE_TEST_SUITE_P(Objectives, SolverTest, EveryObjective(), ObjectiveName);

// More items than the enumeration can try: the search has to know that a token takes longer on the second
// worker.
TEST(UnlikeWorkersTest, EachGetsWhatBringsItToTheTarget) {
  Instance instance = Make({{0, 1}, {0, 1}}, {500, 501, 502, 503, 504, 505, 506, 507, 508, 509, 100, 10, 1});
  instance.workers[1].time_per_token = 10;
  instance.target_load = 100;
  Solver solver(Settings(ObjectiveKind::kSquare));
  const Solution& solution = solver.Solve(instance);
  EXPECT_FALSE(solver.statistics().exact);
  EXPECT_EQ(solution.worker_of[10], 0) << "100 tokens";
  EXPECT_EQ(solution.worker_of[11], 1) << "10 tokens of 10";
}

TEST_P(SolverTest, TinyBudgetStillGivesAFullPlan) {
  SolverSettings settings = Settings(GetParam());
  settings.max_evaluations = 1;
  Solver solver(settings);
  const Solution& solution = solver.Solve(Make({{0, 2}, {0, 2}}, {5, 9, 1, 7, 3}));
  EXPECT_EQ(std::count(solution.worker_of.begin(), solution.worker_of.end(), kUnassigned), 1);
  EXPECT_FALSE(solver.statistics().converged);
}

// A group of 40 with 80 free slots and 400 items over a horizon of 10.
Instance Large(uint64_t seed) {
  Rng rng(seed);
  Instance instance;
  for (int g = 0; g < 40; ++g) {
    instance.workers.push_back({80'000 - static_cast<int64_t>(rng.Below(4'000)), 0, 2, kAmple});
  }
  for (int i = 0; i < 400; ++i) {
    const auto load = static_cast<int64_t>(1 + rng.Gamma(0.8) * 1'200);
    instance.items.push_back({load, load});
  }
  AddHorizon(instance, 10, 11, true, rng);
  AimAtTheMean(instance);
  return instance;
}

TEST_P(SolverTest, WorkStaysNearTheBudgetAndMoreOfItIsNeverWorse) {
  const Instance instance = Large(1);
  double last = std::numeric_limits<double>::infinity();
  for (int64_t budget : {1, 100, 1'000, 10'000, 100'000, 1'000'000}) {
    SolverSettings settings = Settings(GetParam());
    settings.max_evaluations = budget;
    Solver solver(settings);
    const Solution solution = solver.Solve(instance);
    EXPECT_EQ(Infeasibility(instance, solution), "");
    // One slot's look at the pool may overshoot.
    EXPECT_LE(solver.statistics().evaluations, budget + 5'000);
    const double value = Evaluate(instance, settings, solution);
    EXPECT_LE(value, last + 1e-6 * std::abs(last));
    last = value;
  }
}

TEST_P(SolverTest, DeadlineEndsTheSearchWithAFeasiblePlan) {
  const Instance instance = Large(2);
  Solver solver(Settings(GetParam()));
  int asked = 0;
  const Solution& solution = solver.Solve(instance, [&] { return ++asked == 2; });
  EXPECT_EQ(asked, 2) << "not asked again once it has said stop";
  EXPECT_TRUE(solver.statistics().deadline);
  EXPECT_FALSE(solver.statistics().converged);
  EXPECT_EQ(Infeasibility(instance, solution), "");
}

TEST_P(SolverTest, SwapsThatKvForbidsAreNotMade) {
  Instance instance = Make({{1000, 0}, {0, 1}}, {10, 1000});
  instance.workers[1].free_kv_tokens = 500;
  EXPECT_THAT(Solver(Settings(GetParam())).Solve(instance).worker_of, ::testing::ElementsAre(1, kUnassigned));
}

TEST_P(SolverTest, UnequalWorkersAreBalancedByTimeNotByTokens) {
  // Worker 1 takes twice as long per token: 400 tokens on it are as long as 800 on the other.
  Instance instance = Make({{0, 1}, {0, 1}}, {800, 400});
  instance.workers[1].time_per_token = 2;
  instance.target_load = 800;
  EXPECT_THAT(Solver(Settings(GetParam())).Solve(instance).worker_of, ::testing::ElementsAre(0, 1));
}

TEST_P(SolverTest, PromptsOfOnePlanWeighOnOneAnother) {
  // By tokens both belong on worker 0, as long as what they have to compute counts nothing.
  Instance instance = Make({{0, 2}, {2500, 2}}, {1000, 900});
  EXPECT_THAT(Solver(Settings(GetParam())).Solve(instance).worker_of, ::testing::ElementsAre(0, 0));
  for (WorkerView& worker : instance.workers) worker.prefill_weight = 16;
  // 2,500 on worker 1, and 17 a token.
  instance.target_load = (2500 + 17 * 1900) / 2.0;
  EXPECT_THAT(Solver(Settings(GetParam())).Solve(instance).worker_of, ::testing::ElementsAre(0, 1));
  // 2,000 tokens that worker 0 has not computed yet.
  instance.workers[0].time_offset = 16 * 2000;
  instance.target_load += 16 * 2000 / 2.0;
  EXPECT_THAT(Solver(Settings(GetParam())).Solve(instance).worker_of, ::testing::ElementsAre(1, 1));
}

TEST(SolverHorizonTest, PaperPrefersTheItemWhoseEndKeepsTheBalance) {
  // Worker 0 loses 500 of its 1,000 tokens from the second step on: so should worker 1.
  Instance instance = Make({{1000, 0}, {500, 1}}, {500, 500});
  instance.horizon = 2;
  instance.ahead = {1000, 501, 502, 500, 501, 502};
  instance.curves = {1, 1, 1, 1, 0, 0};
  instance.items[1].curve = 1;
  EXPECT_THAT(Solver(Settings(ObjectiveKind::kPaper)).Solve(instance).worker_of,
              ::testing::ElementsAre(kUnassigned, 1));
}

TEST(SolverHorizonTest, RefillIgnoresWhatACompletionWillMend) {
  // Worker 0 is 300 short but will certainly be refilled; over the horizon worker 1's 200 weigh more.
  Instance instance = Make({{700, 1}, {800, 1}}, {200, 1});
  instance.target_load = 1000;
  instance.horizon = 3;
  instance.ahead = {700, 700, 700, 700, 800, 800, 800, 800};
  instance.quiet = {1, 0, 0, 0, 1, 1, 1, 1};
  instance.curves = {1, 1, 1, 1};
  EXPECT_THAT(Solver(Settings(ObjectiveKind::kRefill)).Solve(instance).worker_of,
              ::testing::ElementsAre(1, 0));
}

// A step ahead at which no worker has a time to compare: it has no largest worker, and none is marked as one.
TEST(SolverHorizonTest, OutlookThatIsNoNumberStillGivesAFullPlan) {
  Instance instance = Make({{10, 1}, {4, 1}, {7, 0}}, {2, 5, 3});
  instance.horizon = 1;
  instance.ahead.assign(6, std::numeric_limits<double>::quiet_NaN());
  instance.curves = {1, 1};
  const Solution solution = Solver(Settings(ObjectiveKind::kPaper)).Solve(instance);
  EXPECT_EQ(Infeasibility(instance, solution), "");
  EXPECT_EQ(std::count(solution.worker_of.begin(), solution.worker_of.end(), kUnassigned), 1);
}

TEST(ObjectiveTest, PaperIsGTimesMaxMinusSum) {
  EXPECT_EQ(Evaluate(Make({{10, 1}, {4, 1}, {7, 1}}, {2}), Settings(ObjectiveKind::kPaper), {{1}}),
            3 * 10 - 23);
}

TEST(ObjectiveTest, PaperSumsTheImbalanceOfEveryStepDiscounted) {
  Instance instance = Make({{10, 1}, {4, 1}}, {2});
  instance.horizon = 2;
  instance.ahead = {10, 11, 3, 4, 5, 6};
  instance.curves = {1, 0.5, 0};
  instance.discount = {1, 0.5, 0.25};
  // Loads 10 and 6; 11 and 5 + 3 / 2; 3 and 6.
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kPaper), {{1}}), 4 + 0.5 * 4.5 + 0.25 * 3);
}

TEST(ObjectiveTest, SquareIsSquaredDeviationsFromTheTargetLessWeights) {
  Instance instance = Make({{10, 1}, {4, 1}}, {2});
  instance.target_load = 9;
  instance.items[0].weight = 5;
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kSquare), {{1}}), 1 * 1 + 3 * 3 - 5);
}

TEST(ObjectiveTest, WhatIsToBeComputedCountsAsLongAsTheItemIsThere) {
  Instance instance = Make({{10, 1}, {4, 1}}, {2});
  instance.workers[1].prefill_weight = 3;
  instance.workers[1].time_offset = 1;
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kPaper), {{1}}), 13 - 10);
  instance.horizon = 1;
  instance.ahead = {10, 11, 4, 5};
  instance.curves = {1, 0.5};
  // Loads 11 and 5, 2 + 1 tokens and 2 to be computed with probability 1/2: 11, and 1 + 5 + 1.5 + 3.
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kPaper), {{1}}), 3 + 0.5);
  instance.target_ahead = {13, 10};
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kSquare), {{1}}), 3 * 3 + 1 * 1 + 0.5 * 0.5);
  instance.quiet = {1, 1, 1, 0.5};
  // Refill: 10, and 1 + 4 + 3 + 6 at weight 1/2 * 1/2.
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kRefill), {{1}}), 3 * 3 + 0.25 * 4 * 4);
}

TEST(SolverHomeTest, CreditedItemIsCheapOnTheWorkerThatExpectsItOnly) {
  // Worker 1 really holds 400; 600 of the item's 700 are credited to it.
  Instance instance = Make({{1000, 1}, {1000, 1}}, {700, 90});
  instance.items[0].reserved_worker = 1;
  instance.items[0].precounted_tokens = 600;
  instance.target_load = 1095;
  for (ObjectiveKind kind : {ObjectiveKind::kSquare, ObjectiveKind::kRefill}) {
    EXPECT_THAT(Solver(Settings(kind)).Solve(instance).worker_of, ::testing::ElementsAre(1, 0));
  }
}

}  // namespace
}  // namespace bfio::core
