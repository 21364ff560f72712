// Theorems 1 to 3 of the BF-IO paper in the simulator, where they are cheap to check: FCFS's imbalance is
// what the normal law says and at least what the paper proves, it grows with the root of B, a slot's load has
// the distribution of the proof, a common drift moves no gap, and BF-IO keeps below its bound.
//
// Prompts uniform on 1 .. 100, outputs of 20 tokens or geometric with mean 20. Seeds are fixed; tolerances
// are about three standard errors or said where they stand.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/workload/synthetic.h"
#include "nlohmann/json.hpp"
#include "tools/sim/experiment/estimate.h"
#include "tools/sim/experiment/overload_watch.h"
#include "tools/sim/experiment/theory.h"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

constexpr double kP = 0.05;
const double kPromptDeviation = UniformDeviation(100);

const Trace& Constant() {
  static const Trace* const kTrace = new Trace(UniformPromptsConstantOutputs(1, 100, 20, 200'000, 3));
  return *kTrace;
}

const Trace& Geometric() {
  static const Trace* const kTrace = new Trace(UniformPromptsGeometricOutputs(1, 100, kP, 200'000, 3));
  return *kTrace;
}

// Every slot taken, and the pool deep enough to choose from.
SimOptions Overload(const std::string& policy, int32_t workers, int32_t batch, bool geometric,
                    int64_t steps) {
  SimOptions options;
  options.policy = policy;
  options.objective = "paper";
  options.workers = workers;
  options.batch = batch;
  options.reveal = geometric ? workers * batch / 4 + 32 : 3 * workers * batch;
  options.warmup = 200;
  options.steps = steps;
  return options;
}

double Imbalance(const SimOptions& options, const Trace& trace, const StepTap& tap = {}) {
  auto simulation = Simulation::Create(options, trace);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  const auto run = (*simulation)->Run({}, tap);
  EXPECT_TRUE(run.ok()) << run.status();
  return run->at("avg_imbalance_tokens");
}

struct Group {
  int32_t workers, batch;
};

// Groups beyond those of spec_checks_test.cc.
class ConstantOutputScale : public ::testing::TestWithParam<Group> {};

TEST_P(ConstantOutputScale, FcfsIsTheNormalEstimateAndTheProgramLeavesNothing) {
  const auto [workers, batch] = GetParam();
  EXPECT_NEAR(Imbalance(Overload("fcfs", workers, batch, false, 12'000), Constant()) /
                  FcfsNormalEstimate(workers, batch, kPromptDeviation),
              1, 0.04);
  EXPECT_EQ(Imbalance(Overload("bf_io", workers, batch, false, 200), Constant()), 0);
}

INSTANTIATE_TEST_SUITE_P(Groups, ConstantOutputScale,
                         ::testing::Values(Group{32, 16}, Group{16, 64}, Group{16, 144}));

TEST(ScalingTest, ImbalanceOfFcfsGrowsWithTheRootOfTheBatch) {
  std::vector<double> batches, imbalances;
  for (int32_t batch : {16, 32, 64, 128, 256}) {
    batches.push_back(batch);
    imbalances.push_back(Imbalance(Overload("fcfs", 16, batch, true, 8'000), Geometric()));
  }
  EXPECT_NEAR(LogLogSlope(batches, imbalances).mean, 0.5, 0.05);
}

TEST(ScalingTest, ImbalanceOfFcfsGrowsWithTheLargestOfNormalsInTheGroup) {
  for (int32_t workers : {4, 16, 64}) {
    EXPECT_NEAR(Imbalance(Overload("fcfs", workers, 32, true, 6'000), Geometric()) /
                    FcfsNormalEstimate(workers, 32, std::hypot(kPromptDeviation, std::sqrt(1 - kP) / kP)),
                1, 0.06)
        << workers << " workers";
  }
}

// Theorem 3: every drift that the simulator has.
class DriftScale : public ::testing::TestWithParam<const char*> {};

TEST_P(DriftScale, FcfsIsTheEstimateOfItsSlotsAndAboveThePapersBound) {
  SimOptions options = Overload("fcfs", 16, 32, true, 8'000);
  options.drift = GetParam();
  const double imbalance = Imbalance(options, Geometric());
  const absl::StatusOr<SlotLoad> slot =
      GeometricSlotLoad(options.drift, kP, 50.5, kPromptDeviation, options.seed);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_NEAR(imbalance / FcfsNormalEstimate(16, 32, slot->deviation), 1, 0.06);
  EXPECT_GT(imbalance, FcfsLowerBound(16, 32, kPromptDeviation));
}

TEST_P(DriftScale, BfIoKeepsBelowItsBoundWhereTheTheoremsConditionHolds) {
  for (const Group& group : {Group{4, 16}, Group{16, 32}, Group{32, 16}}) {
    SimOptions options = Overload("bf_io", group.workers, group.batch, true, 600);
    options.drift = GetParam();
    OverloadWatch watch(options, std::make_shared<const Trace>(Geometric()));
    const double imbalance = Imbalance(options, Geometric(), [&](const StepView& view) { watch.See(view); });
    EXPECT_LT(imbalance, BfIoUpperBound(group.workers, 100, kP));
    EXPECT_GT(watch.share(), 0.95);
  }
}

INSTANTIATE_TEST_SUITE_P(Drifts, DriftScale,
                         ::testing::Values("growth", "constant", "throttled:0.5", "speculative:3:0.7",
                                           "sequence:0,0,5,1"));

// Constant outputs: all slots fall free together and are filled at once, so all requests are as old, every
// worker of B gains B times the same in each step, and no gap moves. What was placed does not hang on the
// drift either: when it was decided nobody held anything.
TEST(ScalingTest, CommonDriftLeavesEveryGapWhereItWas) {
  const auto gaps = [](const char* policy, const char* drift) {
    SimOptions options = Overload(policy, 8, 12, false, 300);
    options.drift = drift;
    std::vector<int64_t> gaps;
    Imbalance(options, Constant(), [&](const StepView& view) {
      for (int64_t load : view.loads) gaps.push_back(load - view.loads[0]);
    });
    return gaps;
  };
  for (const char* policy : {"fcfs", "lpt", "bf_io", "bf_io_auto"}) {
    const std::vector<int64_t> grown = gaps(policy, "growth");
    for (const char* drift : {"constant", "throttled:0.5", "throttled:0.3", "sequence:0,0,5,1"}) {
      EXPECT_EQ(gaps(policy, drift), grown) << policy << " " << drift;
    }
  }
}

// What every slot holds, by accounts of the test's own.
class Snapshots {
 public:
  explicit Snapshots(int64_t every) : every_(every) {}

  void See(const StepView& view) {
    for (const Started& one : view.started) {
      const TraceRequest& row = Geometric().requests[(one.id - 1) % Geometric().requests.size()];
      running_[one.id] = {row.prompt_tokens, view.step};
    }
    if (view.step > 200 && view.step % every_ == 0) {
      for (const auto& [id, request] : running_) {
        ages_.push_back(static_cast<double>(view.step - request.first_step));
        loads_.push_back(static_cast<double>(request.prompt) + ages_.back());
      }
    }
    for (const auto& worker : view.finished) {
      for (core::RequestId id : worker) running_.erase(id);
    }
  }

  const std::vector<double>& ages() const { return ages_; }
  const std::vector<double>& loads() const { return loads_; }

 private:
  struct Running {
    int64_t prompt, first_step;
  };
  int64_t every_;
  std::map<core::RequestId, Running> running_;
  std::vector<double> ages_, loads_;
};

TEST(ScalingTest, SlotsUnderFcfsHoldAPromptAndAGeometricAge) {
  // Five mean lengths apart: nearly everybody is somebody else.
  Snapshots snapshots(100);
  Imbalance(Overload("fcfs", 4, 16, true, 20'000), Geometric(),
            [&](const StepView& view) { snapshots.See(view); });
  const Estimate load = EstimateMean(snapshots.loads());
  ASSERT_EQ(load.samples, 200 * 64);
  const double variance = kPromptDeviation * kPromptDeviation + (1 - kP) / (kP * kP);
  EXPECT_NEAR(load.mean, 50.5 + (1 - kP) / kP, 3 * std::sqrt(variance / static_cast<double>(load.samples)));
  EXPECT_NEAR(load.standard_deviation * load.standard_deviation / variance, 1, 0.05);

  // Chi-square over 20 ranges of ages; 19 degrees of freedom, 43.8 is exceeded once in 1,000.
  constexpr int kRanges = 20, kWidth = 4;
  std::vector<double> counts(kRanges, 0);
  for (double age : snapshots.ages())
    counts[std::min<size_t>(kRanges - 1, static_cast<size_t>(age) / kWidth)] += 1;
  double chi_square = 0;
  for (int i = 0; i < kRanges; ++i) {
    const double from = std::pow(1 - kP, i * kWidth),
                 to = i + 1 < kRanges ? std::pow(1 - kP, (i + 1) * kWidth) : 0;
    const double expected = (from - to) * static_cast<double>(load.samples);
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 43.8);
}

TEST(ScalingTest, SlotLoadOfGrowthIsTheClosedFormOfThePaper) {
  const absl::StatusOr<SlotLoad> growth = GeometricSlotLoad("growth", kP, 50.5, kPromptDeviation, 1);
  ASSERT_TRUE(growth.ok());
  EXPECT_NEAR(growth->mean, 50.5 + (1 - kP) / kP, 1e-6);
  EXPECT_NEAR(growth->deviation, std::hypot(kPromptDeviation, std::sqrt(1 - kP) / kP), 1e-6);
  const absl::StatusOr<SlotLoad> constant = GeometricSlotLoad("constant", kP, 50.5, kPromptDeviation, 1);
  ASSERT_TRUE(constant.ok());
  EXPECT_NEAR(constant->mean, 50.5, 1e-9);
  EXPECT_NEAR(constant->deviation, kPromptDeviation, 1e-9);
}

TEST(ScalingTest, LargestOfNormalsIsTheTabledOne) {
  // Teichroew, 1956; the paper's specification has three of these digits.
  EXPECT_NEAR(LargestNormal(1), 0, 1e-6);
  EXPECT_NEAR(LargestNormal(2), 0.564190, 1e-6);
  EXPECT_NEAR(LargestNormal(4), 1.029375, 1e-6);
  EXPECT_NEAR(LargestNormal(16), 1.765991, 1e-6);
  EXPECT_NEAR(LargestNormal(32), 2.069669, 1e-6);
}

}  // namespace
}  // namespace bfio::sim
