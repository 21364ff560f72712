// Theorems 1 to 3 of the BF-IO paper in the simulator, where they are cheap to check: a slot's load has the
// distribution of the proof, a common drift does not change differences of loads, and BF-IO stays below its
// bound. How imbalance grows with slots and workers is checked by research/bf_io.py scaling.
//
// Prompts uniform on 1 .. 100, outputs of 20 tokens or geometric with mean 20. Seeds are fixed; tolerances
// are about three standard errors.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/uniform_prompts.h"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

constexpr double kP = 0.05;
// Mean and variance of an integer uniform on 1 .. 100.
constexpr double kPromptMean = 50.5, kPromptVariance = (100.0 * 100 - 1) / 12;

const Trace& Constant() {
  static const Trace* const kTrace =
      new Trace(bfio::testing::UniformPromptsConstantOutputs(1, 100, 20, 200'000, 3));
  return *kTrace;
}

const Trace& Geometric() {
  static const Trace* const kTrace =
      new Trace(bfio::testing::UniformPromptsGeometricOutputs(1, 100, kP, 200'000, 3));
  return *kTrace;
}

// Every slot taken, and the pool large enough to choose from.
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

nlohmann::ordered_json Simulate(const SimOptions& options, const Trace& trace, const StepTap& tap = {}) {
  auto simulation = Simulation::Create(options, trace);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  const auto run = (*simulation)->Run({}, tap);
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

struct Group {
  int32_t workers, batch;
};

TEST(ScalingTest, ConstantOutputsLeaveTheProgramNoImbalance) {
  for (const Group& group : {Group{32, 16}, Group{16, 64}, Group{16, 144}}) {
    const auto run = Simulate(Overload("bf_io", group.workers, group.batch, false, 200), Constant());
    EXPECT_EQ(run.at("avg_imbalance_tokens"), 0) << group.workers << " of " << group.batch;
  }
}

// Theorem 3, with every drift of the simulator.
class DriftScale : public ::testing::TestWithParam<const char*> {};

TEST_P(DriftScale, BfIoKeepsBelowItsBoundWhereTheTheoremsConditionHolds) {
  for (const Group& group : {Group{4, 16}, Group{16, 32}, Group{32, 16}}) {
    SimOptions options = Overload("bf_io", group.workers, group.batch, true, 600);
    options.drift = GetParam();
    const auto run = Simulate(options, Geometric());
    // (G - 1) s_max / p
    EXPECT_LT(run.at("avg_imbalance_tokens"), (group.workers - 1) * 100 / kP);
    EXPECT_GT(run.at("overloaded_fraction"), 0.95);
  }
}

INSTANTIATE_TEST_SUITE_P(Drifts, DriftScale,
                         ::testing::Values("growth", "constant", "throttled:0.5", "speculative:3:0.7",
                                           "sequence:0,0,5,1"));

// Theorems 1 to 3 with the constant of their proofs, c2 = (1 - exp(-1 / (4 sqrt(2 pi)))) / sqrt 2: FCFS's
// imbalance is at least c2 G sd sqrt(B log G), with sd the deviation of a slot's load, and BF-IO's at most (G
// - 1) s_max / p (p = 1 for constant outputs), so FCFS's is at least c2 p sd / s_max sqrt(B log G) G / (G -
// 1) times BF-IO's. Theorem 3 has the prompts' deviation in place of sd.
TEST(ScalingTest, FcfsAndBfIoKeepTheTheoremsBoundsWithTheirConstants) {
  const double c2 = -std::expm1(-1 / (4 * std::sqrt(2 * std::acos(-1.0)))) / std::sqrt(2.0);
  EXPECT_NEAR(c2, 0.0671, 5e-5);
  struct Case {
    const char* drift;
    bool geometric;
    double deviation;
  };
  const double prompts = std::sqrt(kPromptVariance),
               slots = std::sqrt(kPromptVariance + (1 - kP) / (kP * kP));
  for (const Case& c : {Case{"growth", false, prompts},
                        {"growth", true, slots},
                        {"constant", true, prompts},
                        {"throttled:0.5", true, prompts},
                        {"speculative:3:0.7", true, prompts}}) {
    for (const Group& group : {Group{4, 16}, Group{16, 32}, Group{32, 16}}) {
      const auto imbalance = [&](const char* policy) {
        SimOptions options = Overload(policy, group.workers, group.batch, c.geometric, 600);
        options.drift = c.drift;
        return Simulate(options, c.geometric ? Geometric() : Constant())
            .at("avg_imbalance_tokens")
            .get<double>();
      };
      const double g = group.workers, root = std::sqrt(group.batch * std::log(g)), p = c.geometric ? kP : 1;
      const double fcfs = imbalance("fcfs"), bf_io = imbalance("bf_io");
      EXPECT_GE(fcfs, c2 * g * c.deviation * root) << c.drift << " " << g;
      EXPECT_LE(bf_io, (g - 1) * 100 / p) << c.drift << " " << g;
      EXPECT_GE(fcfs, bf_io * c2 * p * c.deviation / 100 * root * g / (g - 1)) << c.drift << " " << g;
      // What the constants leave open.
      EXPECT_GE(fcfs, 10 * c2 * g * c.deviation * root) << c.drift << " " << g;
    }
  }
}

// Constant outputs: all slots become free together and are filled at once, so all requests have the same age,
// every worker of B gains B times the same in each step, and differences of loads do not change. The
// placements do not depend on the drift either, because all workers were empty at the decision.
TEST(ScalingTest, CommonDriftLeavesEveryGapWhereItWas) {
  const auto gaps = [](const char* policy, const char* drift) {
    SimOptions options = Overload(policy, 8, 12, false, 300);
    options.drift = drift;
    std::vector<int64_t> gaps;
    Simulate(options, Constant(), [&](const StepView& view) {
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

// The content of every slot, as recorded by the test.
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
  // Five mean lengths apart, so that nearly all requests are different ones.
  Snapshots snapshots(100);
  Simulate(Overload("fcfs", 4, 16, true, 20'000), Geometric(),
           [&](const StepView& view) { snapshots.See(view); });
  const double count = static_cast<double>(snapshots.loads().size());
  ASSERT_EQ(count, 200 * 64);
  double mean = 0, square = 0;
  for (const double load : snapshots.loads()) {
    mean += load / count;
    square += load * load / count;
  }
  const double variance = kPromptVariance + (1 - kP) / (kP * kP);
  EXPECT_NEAR(mean, kPromptMean + (1 - kP) / kP, 3 * std::sqrt(variance / count));
  EXPECT_NEAR((square - mean * mean) / variance, 1, 0.05);

  // Chi-square over 20 ranges of ages; 19 degrees of freedom, 43.8 is exceeded with probability 1/1,000.
  constexpr int kRanges = 20, kWidth = 4;
  std::vector<double> counts(kRanges, 0);
  for (double age : snapshots.ages())
    counts[std::min<size_t>(kRanges - 1, static_cast<size_t>(age) / kWidth)] += 1;
  double chi_square = 0;
  for (int i = 0; i < kRanges; ++i) {
    const double from = std::pow(1 - kP, i * kWidth),
                 to = i + 1 < kRanges ? std::pow(1 - kP, (i + 1) * kWidth) : 0;
    const double expected = (from - to) * count;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 43.8);
}

}  // namespace
}  // namespace bfio::sim
