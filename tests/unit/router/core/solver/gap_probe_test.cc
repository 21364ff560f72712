// The reported optimality gap of the solver: it is correct, and measuring it does not change plans.
#include "router/core/solver/gap_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/exhaustive.h"
#include "tests/testing/policy_case.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

// The largest time and the number of terms, computed from their definitions.
double LargestTime(const Instance& instance, const Solution& solution) {
  double largest = 0;
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    double tokens = static_cast<double>(instance.workers[g].load_tokens), prompts = 0;
    for (size_t i = 0; i < instance.items.size(); ++i) {
      if (solution.worker_of[i] == static_cast<int32_t>(g)) {
        prompts += static_cast<double>(instance.items[i].LoadOn(static_cast<int32_t>(g)));
      }
    }
    tokens += prompts;
    largest =
        std::max(largest, instance.workers[g].TimeAt(tokens) + instance.workers[g].prefill_weight * prompts);
  }
  return largest;
}

TEST(GapProbe, NoChoiceIsBetterByMore) {
  for (const ObjectiveKind kind : {ObjectiveKind::kPaper, ObjectiveKind::kSquare}) {
    Rng rng(3);
    SolverCaseLimits limits = {.max_workers = 3, .max_items = 6};
    SolverSettings settings = {.objective = kind};
    settings.max_evaluations = 1;  // too few to find the best plan, or to try all
    Solver solver(settings);
    GapProbe probe(1);
    int worse = 0;
    for (int trial = 0; trial < 500; ++trial) {
      const Instance instance = RandomInstance(limits, rng);
      const Solution solution = probe.Solve(solver, instance, {});
      ASSERT_TRUE(probe.gap().has_value());
      ASSERT_GE(*probe.gap(), 0);
      double terms = 0;
      for (int32_t h = 0; h <= instance.horizon; ++h) terms += instance.Discount(h);
      terms *= static_cast<double>(instance.workers.size());
      const double allowed = *probe.gap() * LargestTime(instance, solution);
      const double gap = terms * (kind == ObjectiveKind::kPaper ? allowed : allowed * allowed);
      const double best = SolveExhaustively(instance, settings).objective;
      const double value = Evaluate(instance, settings, solution);
      ASSERT_LE(value - best, gap + 1e-6 * (1 + std::abs(value))) << "trial " << trial;
      worse += value > best + 1e-6 * (1 + std::abs(best));
    }
    EXPECT_GT(worse, 20) << "otherwise the bound was never needed";
  }
}

PolicyCase FewSlots(uint64_t seed) {
  Rng rng(seed);
  PolicyCase slots;
  for (int g = 0; g < 24; ++g) {
    slots.Worker(static_cast<int64_t>(50'000 + rng.Below(5'000)), g % 3 == 0 ? 1 : 0, kAmpleKv, 40);
  }
  for (int i = 0; i < 200; ++i) slots.Waiting(1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200), 200 - i);
  return slots;
}

TEST(GapProbe, PoliciesDecideTheSameWithIt) {
  for (const char* name : {"bf_io", "bf_io:paper", "bf_io_auto"}) {
    const auto without = PolicyNamed(name), with = PolicyNamed(name, {.gap_every = 2});
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(absl::StrCat(name, " ", seed));
      const PolicyCase slots = FewSlots(seed);
      const Decision probed = slots.Call(*with), plain = slots.Call(*without);
      EXPECT_EQ(slots.WorkersOf(probed), slots.WorkersOf(plain));
      EXPECT_EQ(probed.gap.has_value(), seed % 2 == 0);
      EXPECT_FALSE(plain.gap.has_value());
      EXPECT_LT(probed.gap.value_or(0), 0.05);
    }
    FewSlots(2).Decide(*with);
    ASSERT_TRUE(FewSlots(2).Call(*with).gap.has_value());
    EXPECT_FALSE(CaseOf({{5, 0}}, {7}).Call(*with).gap.has_value()) << "nothing was solved";
  }
}

}  // namespace
}  // namespace bfio::core
