// The solver on hand-made cases, and compared with exhaustive search.
#include "router/core/solver/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/rng.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

SolverSettings Settings(ObjectiveKind kind) {
  return {.objective = kind};
}

// Sets the target to the load that every worker reaches if average items are admitted, as policies do.
void AimAtTheMean(Instance& instance) {
  double total = 0, items = 0;
  for (const WorkerView& worker : instance.workers) total += static_cast<double>(worker.load_tokens);
  for (const SolverItem& item : instance.items) items += static_cast<double>(item.load);
  if (!instance.items.empty()) {
    total += items * static_cast<double>(instance.Target()) / static_cast<double>(instance.items.size());
  }
  instance.target_load = total / static_cast<double>(instance.workers.size());
}

// An instance from {load, slots} per worker and items with these loads and weight 0.
Instance Make(const std::vector<std::pair<int64_t, int32_t>>& workers, const std::vector<int64_t>& loads) {
  Instance instance;
  for (const auto& [load, slots] : workers) instance.workers.push_back({load, 0, slots, kAmple});
  for (int64_t load : loads) instance.items.push_back({load, load});
  AimAtTheMean(instance);
  return instance;
}

class SolverTest : public ::testing::TestWithParam<ObjectiveKind> {};
INSTANTIATE_TEST_SUITE_P(Objectives, SolverTest, EveryObjective(), ObjectiveName);

// More items than the enumeration can try: the search must account for the longer time per token of the
// second worker.
TEST(UnlikeWorkersTest, EachGetsTheItemThatReachesTheTarget) {
  Instance instance = Make({{0, 1}, {0, 1}}, {500, 501, 502, 503, 504, 505, 506, 507, 508, 509, 100, 10, 1});
  instance.workers[1].time_per_token = 10;
  instance.target_load = 100;
  Solver solver(Settings(ObjectiveKind::kSquare));
  const Solution& solution = solver.Solve(instance);
  EXPECT_FALSE(solver.statistics().exact);
  EXPECT_EQ(solution.worker_of[10], 0) << "100 tokens";
  EXPECT_EQ(solution.worker_of[11], 1) << "10 tokens of 10";
}

// Such as the request of one tenant among thousands of another's.
TEST(LargePoolTest, AnItemThatIsSoughtIsFoundWhereverItIs) {
  for (const int64_t other_load : {10, 1000}) {
    Instance instance = Make({{0, 2}, {0, 2}}, std::vector<int64_t>(3000, 10));
    for (SolverItem& item : instance.items) item.weight = -1e6;
    instance.items[1500] = {.load = other_load, .kv_reserve = other_load, .weight = 1e6, .sought = true};
    for (int i = 0; i < 1000; ++i) instance.items.push_back({500, 500, 0, -1e6});
    Solver solver(Settings(ObjectiveKind::kSquare));
    EXPECT_NE(solver.Solve(instance).worker_of[1500], kUnassigned) << other_load;
  }
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

TEST_P(SolverTest, WorkStaysNearTheBudgetAndMoreBudgetIsNeverWorse) {
  const Instance instance = Large(1);
  double last = std::numeric_limits<double>::infinity();
  for (int64_t budget : {1, 100, 1'000, 10'000, 100'000, 1'000'000}) {
    SolverSettings settings = Settings(GetParam());
    settings.max_evaluations = budget;
    Solver solver(settings);
    const Solution solution = solver.Solve(instance);
    EXPECT_EQ(Infeasibility(instance, solution), "");
    // The evaluations may exceed the budget by one scan of the pool.
    EXPECT_LE(solver.statistics().evaluations, budget + 5'000);
    EXPECT_FALSE(budget == 1 && solver.statistics().converged);
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

// Slots for all items and memory for few: construction, which no budget limits, dominates.
Instance ShortOfKv() {
  Rng rng(3);
  Instance instance;
  for (int32_t g = 0; g < 256; ++g)
    instance.workers.push_back({50'000, 40, 30, 1'000 + static_cast<int64_t>(rng.Below(3'000))});
  for (int32_t i = 0; i < 1024; ++i) {
    const auto load = static_cast<int64_t>(1 + rng.Gamma(0.8) * 1'200);
    instance.items.push_back({load, load});
  }
  AimAtTheMean(instance);
  return instance;
}

// The least loaded worker has no memory for any item, so each item is compared with all workers.
Instance FirstWorkerFull() {
  Instance instance = ShortOfKv();
  for (WorkerView& worker : instance.workers) worker.free_kv_tokens = kAmple;
  instance.workers[0].load_tokens = instance.workers[0].free_kv_tokens = 0;
  return instance;
}

int64_t Placed(const Solution& solution) {
  return std::count_if(solution.worker_of.begin(), solution.worker_of.end(),
                       [](int32_t worker) { return worker != kUnassigned; });
}

TEST_P(SolverTest, DeadlineEndsConstructionWithWhatIsPlaced) {
  const Instance instance = ShortOfKv();
  Solver solver(Settings(GetParam()));
  int64_t last = 0;
  for (const int deadline : {1, 10, 40}) {
    int asked = 0;
    const Solution& solution = solver.Solve(instance, [&] { return ++asked == deadline; });
    EXPECT_EQ(asked, deadline) << "not asked again";
    EXPECT_TRUE(solver.statistics().deadline);
    // Feasible; items that could still be admitted may wait.
    EXPECT_THAT(Infeasibility(instance, solution), ::testing::AnyOf("", "an item could still start"));
    EXPECT_GT(Placed(solution), last) << "more time, more of it";
    last = Placed(solution);
  }
  // At most a thousand evaluations of a worker's capacity may pass between two checks of the deadline.
  int64_t asked = 0;
  const Solution& whole = solver.Solve(instance, [&] { return ++asked < 0; });
  EXPECT_EQ(Infeasibility(instance, whole), "");
  EXPECT_GT(asked, 256 * Placed(whole) / 1024);
  EXPECT_LT(last, Placed(whole) / 2);
}

TEST_P(SolverTest, TheDeadlineEndsTheFirstPlacement) {
  Solver solver(Settings(GetParam()));
  EXPECT_EQ(Placed(solver.Solve(FirstWorkerFull())), 1024);
  EXPECT_LE(Placed(solver.Solve(FirstWorkerFull(), [] { return true; })), 8);
}

TEST_P(SolverTest, ADeadlineInConstructionLetsNoLowerClassGoFirst) {
  // In the first instance the deadline passes while the largest items are placed; in the second while items
  // are placed in order, because the largest fits nowhere.
  for (Instance instance : {FirstWorkerFull(), ShortOfKv()}) {
    for (size_t i = 0; i < instance.items.size(); ++i) {
      instance.items[i].priority = i < 100 ? 1 : 0;
      // The lower class is larger, so it is placed first.
      if (i >= 100) instance.items[i].load += 20'000;
    }
    Solver solver(Settings(GetParam()));
    const Solution& solution = solver.Solve(instance, [] { return true; });
    EXPECT_GE(Placed(solution), 1);
    for (size_t i = 100; i < instance.items.size(); ++i) EXPECT_EQ(solution.worker_of[i], kUnassigned) << i;
  }
}

TEST_P(SolverTest, DeadlineEndsEnumeration) {
  Rng rng(4);
  Instance instance = Make({{1000, 2}, {900, 2}, {800, 2}}, {10, 20, 30, 40, 50, 60});
  AddHorizon(instance, 20, 3, true, rng);
  Solver solver(Settings(GetParam()));
  int64_t asked = 0;
  solver.Solve(instance, [&] { return ++asked < 0; });
  EXPECT_TRUE(solver.statistics().exact);
  EXPECT_GT(asked, 20);
  const int64_t last = asked - 5;
  asked = 0;
  const Solution& solution = solver.Solve(instance, [&] { return ++asked == last; });
  EXPECT_FALSE(solver.statistics().exact);
  EXPECT_TRUE(solver.statistics().CutShort());
  EXPECT_EQ(Infeasibility(instance, solution), "");
}

// No worker's load at the next step is a number, so none of them is the largest.
TEST(SolverHorizonTest, NanInTheOutlookStillGivesAFullPlan) {
  Instance instance = Make({{10, 1}, {4, 1}, {7, 0}}, {2, 5, 3});
  instance.horizon = 1;
  instance.ahead.assign(6, std::numeric_limits<double>::quiet_NaN());
  instance.curves = {1, 1};
  const Solution solution = Solver(Settings(ObjectiveKind::kPaper)).Solve(instance);
  EXPECT_EQ(Infeasibility(instance, solution), "");
  EXPECT_EQ(std::count(solution.worker_of.begin(), solution.worker_of.end(), kUnassigned), 1);
}

// --- the objectives, from their definitions ---

TEST(ObjectiveTest, PaperSumsGTimesMaxMinusSumOfEveryStepDiscounted) {
  const SolverSettings paper = Settings(ObjectiveKind::kPaper);
  EXPECT_EQ(Evaluate(Make({{10, 1}, {4, 1}, {7, 1}}, {2}), paper, {{1}}), 3 * 10 - 23);
  Instance instance = Make({{10, 1}, {4, 1}}, {2});
  instance.horizon = 2;
  instance.ahead = {10, 11, 3, 4, 5, 6};
  instance.curves = {1, 0.5, 0};
  instance.discount = {1, 0.5, 0.25};
  // Loads at the three steps: 10 and 6; 11 and 5 + 3 / 2; 3 and 6.
  EXPECT_EQ(Evaluate(instance, paper, {{1}}), 4 + 0.5 * 4.5 + 0.25 * 3);
}

TEST(ObjectiveTest, SquareIsSquaredDeviationsFromTheTargetLessWeights) {
  Instance instance = Make({{10, 1}, {4, 1}}, {2});
  instance.target_load = 9;
  instance.items[0].weight = 5;
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kSquare), {{1}}), 1 * 1 + 3 * 3 - 5);
}

TEST(SolverReservedWorkerTest, PrecountedTokensLowerTheLoadOnTheReservedWorker) {
  // Worker 1's load of 1,000 contains 600 of the first item's 700 tokens, precounted because it is reserved
  // for that item: it really holds 400.
  Instance instance = Make({{1000, 1}, {1000, 1}}, {700, 90});
  instance.items[0].reserved_worker = 1;
  instance.items[0].precounted_tokens = 600;
  instance.target_load = 1095;
  EXPECT_THAT(Solver(Settings(ObjectiveKind::kSquare)).Solve(instance).worker_of,
              ::testing::ElementsAre(1, 0));
}

// --- solver exact ---

// The solver against exhaustive search, on every small instance of a grid and on random ones.

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
