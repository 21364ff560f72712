#include "router/core/solver/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/rng.h"
#include "router/core/solver/exhaustive.h"

namespace bfio::core {
namespace {

constexpr int64_t kAmple = int64_t{1} << 40;

SolverSettings Settings(ObjectiveKind kind) {
  SolverSettings settings;
  settings.objective = kind;
  return settings;
}

// The load that brings every worker to the same level if average items go in: what a policy would ask for.
void AimAtTheMean(Instance& instance) {
  double total = 0, items = 0;
  for (const SolverWorker& worker : instance.workers) total += static_cast<double>(worker.load);
  for (const SolverItem& item : instance.items) items += static_cast<double>(item.load);
  if (!instance.items.empty()) {
    total += items * static_cast<double>(instance.Target()) / static_cast<double>(instance.items.size());
  }
  instance.target_load = total / static_cast<double>(instance.workers.size());
}

// {load, slots} per worker; items with these loads, worth nothing.
Instance Make(const std::vector<std::pair<int64_t, int32_t>>& workers, const std::vector<int64_t>& loads) {
  Instance instance;
  for (const auto& [load, slots] : workers) instance.workers.push_back({load, slots, kAmple});
  for (int64_t load : loads) instance.items.push_back({load, load});
  AimAtTheMean(instance);
  return instance;
}

// Sum of relative gaps, and how often the exact optimum was met.
struct Gap {
  double relative = 0;
  int64_t instances = 0;
  int64_t optimal = 0;

  void Add(const Instance& instance, const SolverSettings& settings) {
    const double ours = Evaluate(instance, settings, Solver(settings).Solve(instance));
    const double best = SolveExhaustively(instance, settings).objective;
    ASSERT_GE(ours, best - 1e-6 * (1 + std::abs(best))) << "better than the optimum: one of the two is wrong";
    const double scale = 0.01 + std::abs(best);
    ++instances;
    if (ours <= best + 1e-9 * scale) ++optimal;
    relative += (ours - best) / scale;
  }
  double OptimalShare() const { return static_cast<double>(optimal) / static_cast<double>(instances); }
};

class SolverTest : public ::testing::TestWithParam<ObjectiveKind> {};
INSTANTIATE_TEST_SUITE_P(Objectives, SolverTest,
                         ::testing::Values(ObjectiveKind::kPaper, ObjectiveKind::kSquare),
                         [](const auto& param) {
                           return param.param == ObjectiveKind::kPaper ? "Paper" : "Square";
                         });

// Every pool of up to six items from {1, 4, 9}, on up to three workers with base loads 0, 5, 10 and up to two
// slots.
TEST_P(SolverTest, OnAllSmallInstancesItIsNeverBelowAndMostlyAtTheOptimum) {
  Gap gap;
  for (int g = 1; g <= 3; ++g) {
    for (int slots = 0; slots < (1 << g); ++slots) {
      for (int items = 1; items <= 6; ++items) {
        for (int ones = 0; ones <= items; ++ones) {
          for (int fours = 0; ones + fours <= items; ++fours) {
            Instance instance;
            for (int w = 0; w < g; ++w) instance.workers.push_back({5 * w, 1 + ((slots >> w) & 1), kAmple});
            for (int i = 0; i < items; ++i) {
              const int64_t load = i < ones ? 1 : i < ones + fours ? 4 : 9;
              instance.items.push_back({load, load});
            }
            AimAtTheMean(instance);
            ASSERT_NO_FATAL_FAILURE(gap.Add(instance, Settings(GetParam())));
          }
        }
      }
    }
  }
  RecordProperty("instances", static_cast<int>(gap.instances));
  RecordProperty("optimal_percent", static_cast<int>(100 * gap.OptimalShare()));
  EXPECT_GT(gap.instances, 1000);
  EXPECT_GE(gap.OptimalShare(), 0.9);
}

TEST_P(SolverTest, OnRandomSmallInstancesTheMeanGapIsSmall) {
  Gap gap;
  Rng rng(20240611);
  for (int trial = 0; trial < 1000; ++trial) {
    Instance instance;
    const int g = 1 + static_cast<int>(rng.Below(3));
    for (int w = 0; w < g; ++w) {
      instance.workers.push_back(
          {static_cast<int64_t>(1000 + rng.Below(1000)), static_cast<int32_t>(rng.Below(3)), kAmple});
    }
    const int items = 1 + static_cast<int>(rng.Below(6));
    for (int i = 0; i < items; ++i) {
      instance.items.push_back({static_cast<int64_t>(1 + rng.Below(1000)), 1});
    }
    AimAtTheMean(instance);
    ASSERT_NO_FATAL_FAILURE(gap.Add(instance, Settings(GetParam())));
  }
  RecordProperty("optimal_percent", static_cast<int>(100 * gap.OptimalShare()));
  EXPECT_GE(gap.OptimalShare(), 0.85);
}

TEST_P(SolverTest, WithOneFreeSlotItIsExact) {
  Rng rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    Instance instance = Make({{5000, 0}, {static_cast<int64_t>(3000 + rng.Below(3000)), 1}, {4800, 0}}, {});
    for (int i = 0; i < 6; ++i) {
      instance.items.push_back({static_cast<int64_t>(1 + rng.Below(3000)), 1});
      instance.items.back().worth = 1e5 * rng.Uniform();
    }
    AimAtTheMean(instance);
    const SolverSettings settings = Settings(GetParam());
    EXPECT_DOUBLE_EQ(Evaluate(instance, settings, Solver(settings).Solve(instance)),
                     SolveExhaustively(instance, settings).objective);
  }
}

TEST_P(SolverTest, TinyBudgetStillGivesAFullPlan) {
  SolverSettings settings = Settings(GetParam());
  settings.max_evaluations = 1;
  Solver solver(settings);
  const Solution& solution = solver.Solve(Make({{0, 2}, {0, 2}}, {5, 9, 1, 7, 3}));
  EXPECT_EQ(std::count(solution.worker_of.begin(), solution.worker_of.end(), kUnassigned), 1);
  EXPECT_FALSE(solver.statistics().converged);
}

TEST_P(SolverTest, SwapsThatKvForbidsAreNotMade) {
  Instance instance = Make({{1000, 0}, {0, 1}}, {10, 1000});
  instance.workers[1].kv_tokens = 500;
  EXPECT_THAT(Solver(Settings(GetParam())).Solve(instance).worker_of, ::testing::ElementsAre(1, kUnassigned));
}

// BF-IO paper, Lemma 1: the bound gap <= s_max is claimed for every optimum, and holds only for the right
// one. All six items must go in, two to a worker; both partitions have the same max and sum, hence the same
// J.
TEST(PartitionTest, PaperObjectiveCannotTellTheLexicographicOptimumSquareCan) {
  const Instance instance = Make({{0, 2}, {0, 2}, {0, 2}}, {1, 5, 5, 5, 5, 1});
  const Solution wide = {{2, 0, 0, 1, 1, 2}};   // loads 10, 10, 2: gap 8 > s_max = 5
  const Solution tight = {{1, 0, 0, 1, 2, 2}};  // loads 10, 6, 6: gap 4
  const SolverSettings paper = Settings(ObjectiveKind::kPaper), square = Settings(ObjectiveKind::kSquare);
  EXPECT_EQ(Evaluate(instance, paper, wide), 8);
  EXPECT_EQ(Evaluate(instance, paper, tight), 8);
  EXPECT_GT(Evaluate(instance, square, wide), Evaluate(instance, square, tight));
  EXPECT_EQ(Evaluate(instance, square, Solver(square).Solve(instance)), Evaluate(instance, square, tight));
}

TEST(ObjectiveTest, PaperIsGTimesMaxMinusSum) {
  EXPECT_EQ(Evaluate(Make({{10, 1}, {4, 1}, {7, 1}}, {2}), Settings(ObjectiveKind::kPaper), {{1}}),
            3 * 10 - 23);
}

TEST(ObjectiveTest, SquareIsSquaredDeviationsFromTheTargetLessWorth) {
  Instance instance = Make({{10, 1}, {4, 1}}, {2});
  instance.target_load = 9;
  instance.items[0].worth = 5;
  EXPECT_EQ(Evaluate(instance, Settings(ObjectiveKind::kSquare), {{1}}), 1 * 1 + 3 * 3 - 5);
}

TEST(SolverHomeTest, CreditedItemIsCheapOnTheWorkerThatExpectsItOnly) {
  // Worker 1 really holds 400; 600 of the item's 700 are credited to it.
  Instance instance = Make({{1000, 1}, {1000, 1}}, {700, 90});
  instance.items[0].home = 1;
  instance.items[0].credit = 600;
  instance.target_load = 1095;
  EXPECT_THAT(Solver(Settings(ObjectiveKind::kSquare)).Solve(instance).worker_of,
              ::testing::ElementsAre(1, 0));
}

// The solver prices exchanges by difference; here against the objective computed anew.
template <class Objective>
void ExpectPricesMatchValues(Objective objective) {
  Rng rng(3);
  Instance instance;
  instance.target_load = 40;
  std::vector<int64_t> loads(5);
  for (int trial = 0; trial < 500; ++trial) {
    for (int64_t& load : loads) load = static_cast<int64_t>(rng.Below(100));
    objective.Reset(instance, loads);
    const auto g = static_cast<int32_t>(rng.Below(5)), h = static_cast<int32_t>((g + 1 + rng.Below(4)) % 5);
    const double d = static_cast<double>(rng.Below(100)) - 50, e = static_cast<double>(rng.Below(100)) - 50;
    const double before = objective.Value();
    Objective one = objective, two = objective;
    one.Apply(g, d);
    two.Apply(g, d);
    two.Apply(h, e);
    EXPECT_NEAR(objective.Single(g)(d), one.Value() - before, 1e-6);
    EXPECT_NEAR(objective.Pair(g, h)(d, e), two.Value() - before, 1e-6);
  }
}

TEST(ObjectiveTest, PricesAreDifferencesOfValues) {
  ExpectPricesMatchValues(PaperObjective());
  ExpectPricesMatchValues(SquareObjective());
}

}  // namespace
}  // namespace bfio::core
