// Every plan of the solver is feasible, and every predicted change of the objective is exact, for any
// instance.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/solver.h"
#include "router/core/solver/square_pricing.h"
#include "router/core/solver/terms.h"
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

// Random items on random workers of an instance, and the changes of the objective that a search would compute
// for them.
template <class Pricing>
class Prices {
 public:
  Prices(const Instance& instance, Pricing& pricing, Rng& rng) : instance_(instance), pricing_(pricing) {
    allocation_.Reset(instance, worker_of_);
    for (int32_t item = 0; item < allocation_.items(); ++item) {
      const auto g = static_cast<int32_t>(rng.Below(instance.workers.size()));
      if (allocation_.Fits(item, g)) allocation_.Place(item, g);
    }
    terms_.Reset(instance);
    pricing_.Reset(instance, terms_, allocation_);
    before_ = pricing_.Value();
  }

  void ExpectToBeDifferences() {
    for (int32_t a = 0; a < allocation_.items(); ++a) {
      const int32_t g = worker_of_[a];
      if (g == kUnassigned) continue;
      for (int32_t h = 0; h < allocation_.workers(); ++h) {
        if (h != g && instance_.workers[h].free_slots > 0) Expect(pricing_.Move(a, g, h), {{a, g, h}});
      }
      for (int32_t b = 0; b < allocation_.items(); ++b) {
        const int32_t h = worker_of_[b];
        if (h == kUnassigned) {
          pricing_.Open(g, a);
          pricing_.Lowest(instance_.CurveOf(instance_.items[b]));
          Expect(pricing_.GainOf(b), {{a, g, kUnassigned}, {b, kUnassigned, g}});
        } else if (h != g) {
          Expect(pricing_.Pair(a, g, b, h), {{a, g, h}, {b, h, g}});
        }
      }
    }
  }

 private:
  struct Change {
    int32_t item, from, to;
  };

  // Applies the changes, compares the objective, and reverts them.
  void Expect(double price, const std::vector<Change>& changes) {
    for (const Change& change : changes) Put(change.item, change.from, change.to);
    pricing_.Settle();
    const double after = pricing_.Value();
    for (const Change& change : changes) Put(change.item, change.to, change.from);
    pricing_.Settle();
    EXPECT_NEAR(price, after - before_, 1e-9 * (1 + std::abs(before_) + std::abs(after)));
  }
  void Put(int32_t item, int32_t from, int32_t to) {
    if (from != kUnassigned) pricing_.Put(item, from, -1);
    if (to != kUnassigned) pricing_.Put(item, to, +1);
  }

  const Instance& instance_;
  Pricing& pricing_;
  std::vector<int32_t> worker_of_;
  Allocation allocation_;
  Terms terms_;
  double before_ = 0;
};

TEST_P(SolverProperty, PricesAreWhatTheObjectiveChangesBy) {
  PaperPricing paper;
  SquarePricing square;
  Rng rng(17);
  for (int trial = 0; trial < 1000 && !HasFailure(); ++trial) {
    SCOPED_TRACE(trial);
    const Instance instance = RandomInstance({}, rng);
    if (GetParam() == ObjectiveKind::kPaper) {
      Prices(instance, paper, rng).ExpectToBeDifferences();
    } else {
      Prices(instance, square, rng).ExpectToBeDifferences();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Objectives, SolverProperty, EveryObjective(), ObjectiveName);

}  // namespace
}  // namespace bfio::core
