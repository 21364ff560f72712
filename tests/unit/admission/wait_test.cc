// WAIT and Nested WAIT against "Fluid-Based Online Scheduling under Memory Constraints": the fluid benchmark,
// the thresholds, and what a simulated worker does with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "router/core/admission/fluid.h"
#include "tools/sim/admission/wait_worker.h"

namespace bfio::sim {
namespace {

using core::IterationTime;
using core::RequestType;
using core::Segments;

// Llama-2-7B on an A100: weights and KV over the memory's bandwidth.
constexpr IterationTime kTime = {6.6e-3, 2.57e-7};
const std::vector<RequestType>& Low() {
  static const std::vector<RequestType> types = {{1000, 10, 10}, {1000, 10, 20}};
  return types;
}
const std::vector<RequestType>& Nested() {
  static const std::vector<RequestType> types = {{20, 10, 20}, {40, 10, 40}, {80, 10, 80}, {160, 10, 160}};
  return types;
}

WaitRun Wait(int64_t n, double horizon, uint64_t seed = 1) {
  WaitOptions options;
  options.time = kTime;
  options.horizon = horizon;
  options.seed = seed;
  const std::vector<int64_t> thresholds = {n, n};
  return RunWait(Low(), thresholds, options);
}

TEST(Fluid, EquilibriumOfTheLowLoad) {
  const auto fluid = core::FluidEquilibrium(Low(), kTime);
  ASSERT_TRUE(fluid.ok()) << fluid.status();
  EXPECT_NEAR(fluid->memory, 4544, 1);
  EXPECT_DOUBLE_EQ(fluid->throughput, 32'000);
  EXPECT_NEAR(fluid->requests[0] / 11, 7.77, 0.005);
  // A batch of just that takes M* tokens.
  double tokens = 0;
  for (size_t j = 0; j < 2; ++j) {
    tokens += fluid->requests[j] / static_cast<double>(Low()[j].output + 1) * core::StageTokens(Low()[j]);
  }
  EXPECT_NEAR(tokens, fluid->memory, 1e-6);
}

TEST(Fluid, AHopelessLoadIsRefused) {
  const std::vector<RequestType> high = {{6000, 20, 100}, {4000, 20, 200}, {2000, 20, 300}};
  EXPECT_EQ(core::FluidEquilibrium(high, kTime).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core::WaitThresholds(high, kTime).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core::NestedThresholds(core::SegmentsOf(high), kTime).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Wait, TheSmallestStableThresholds) {
  const auto iteration = [](int64_t n) {
    return core::WaitIteration(Low(), std::vector<int64_t>{n, n}, kTime);
  };
  EXPECT_NEAR(iteration(8), 7.803e-3, 1e-6);
  EXPECT_NEAR(iteration(7), 7.652e-3, 1e-6);
  EXPECT_TRUE(core::WaitIsStable(Low(), std::vector<int64_t>{8, 8}, kTime));
  EXPECT_FALSE(core::WaitIsStable(Low(), std::vector<int64_t>{7, 7}, kTime));
  EXPECT_EQ(*core::WaitThresholds(Low(), kTime, 1), (std::vector<int64_t>{8, 8}));
  for (const double load : {0.5, 0.9, 0.98}) {
    const auto thresholds = core::WaitThresholds(Low(), kTime, load);
    ASSERT_TRUE(thresholds.ok());
    EXPECT_LE(core::WaitIteration(Low(), *thresholds, kTime) * 1000,
              load * static_cast<double>((*thresholds)[0]) + 1e-9);
  }
}

TEST(Wait, BelowTheThresholdThroughputIsWhatTheIterationAllows) {
  for (const int64_t n : {6, 7}) {
    const double iteration = core::WaitIteration(Low(), std::vector<int64_t>{n, n}, kTime);
    const double per_type = std::min(1000.0, static_cast<double>(n) / iteration);
    EXPECT_NEAR(Wait(n, 100).tokens_per_s, per_type * 32, 0.003 * per_type * 32) << n;
  }
  EXPECT_NEAR(Wait(6, 100).tokens_per_s, 25'578, 80);
  EXPECT_NEAR(Wait(7, 100).tokens_per_s, 29'249, 90);
}

TEST(Wait, AboveItThroughputIsTheArrivalsAndLatencyGrowsWithTheThreshold) {
  struct Case {
    int64_t n;
    double latency, ttft;
  };
  for (const Case& c : {Case{8, 0.150, 0.031}, {9, 0.152, 0.0175}, {12, 0.197, 0.0170}, {24, 0.381, 0.021}}) {
    const WaitRun run = Wait(c.n, 100);
    EXPECT_NEAR(run.tokens_per_s, 32'000, 0.006 * 32'000) << c.n;
    EXPECT_NEAR(run.mean_latency, c.latency, 0.08 * c.latency) << c.n;
    EXPECT_NEAR(run.mean_ttft, c.ttft, 0.25 * c.ttft) << c.n;
    EXPECT_LE(run.peak_batch, c.n * 585) << c.n;
  }
}

TEST(Wait, TheQueueIsBoundedAsTheLemmaSays) {
  // E[W_0] <= 2 n + lambda DT / (2 (n - lambda DT)).
  const double iteration = 7.803;
  const double bound = 2 * 8 + iteration / (2 * (8 - iteration));
  const WaitRun run = Wait(8, 400);
  EXPECT_LE(run.mean_waiting[0], bound);
  EXPECT_LE(run.mean_waiting[1], bound);
}

TEST(Wait, HeavyTrafficClosesTheGapAndLatencyStays) {
  // Rates times zeta, iterations 1 / zeta as long: gap to the fluid O(1 / (zeta T)), latency O(1 / zeta) of a
  // step.
  double base = 0;
  for (const double zeta : {1.0, 4.0, 16.0}) {
    std::vector<RequestType> types = Low();
    for (RequestType& type : types) type.rate *= zeta;
    WaitOptions options;
    options.time = {kTime.d0 / zeta, kTime.d1 / zeta};
    options.horizon = 20;
    const WaitRun run = RunWait(types, std::vector<int64_t>{9, 9}, options);
    EXPECT_NEAR(run.tokens_per_s / (32'000 * zeta), 1, 0.02) << zeta;
    if (zeta == 1) base = run.mean_latency;
    EXPECT_LE(run.mean_latency, 1.1 * base);
  }
}

TEST(NestedWait, DecayOfASegmentsQueue) {
  EXPECT_NEAR(core::SegmentDecay(6, 10, 0.5), 0.822163, 1e-6);
  EXPECT_NEAR(core::SegmentDecay(60, 100, 0.5), 0.822163, 1e-6) << "it does not change with the scale";
  EXPECT_NEAR(core::SegmentDecay(55, 100, 0.5), 0.402692, 1e-6);
  for (const double n : {51.0, 60.0, 80.0, 99.0}) {
    EXPECT_GE(core::SegmentDecay(n, 100, 0.5), 8 * (n - 50) / 100) << "the lower bound of the lemma";
  }
}

TEST(NestedWait, TheQueueIsUnderTheExponentialBound) {
  // Lindley's recursion: W <- max(W - n, 0) + Binomial(n_before, p).
  constexpr int64_t kBefore = 10, kN = 6, kSteps = 400'000;
  const double theta = core::SegmentDecay(kN, kBefore, 0.5);
  Rng rng(5);
  std::vector<int64_t> at_least(40);
  int64_t w = 0;
  for (int64_t i = 0; i < kSteps; ++i) {
    w = std::max<int64_t>(w - kN, 0);
    for (int64_t k = 0; k < kBefore; ++k) w += rng.Uniform() < 0.5;
    for (int64_t c = 0; c < 40 && c <= w; ++c) ++at_least[static_cast<size_t>(c)];
  }
  for (int64_t c = kN; c < 20; ++c) {
    EXPECT_LE(static_cast<double>(at_least[static_cast<size_t>(c)]) / kSteps,
              std::exp(-theta * static_cast<double>(c - kN)) + 1e-4)
        << c;
  }
}

TEST(NestedWait, SegmentsOfTypesAndMerged) {
  const Segments segments = core::SegmentsOf(Nested());
  EXPECT_EQ(segments.last_stage, (std::vector<int64_t>{20, 40, 80, 160}));
  EXPECT_EQ(segments.first_stage(2), 41);
  EXPECT_DOUBLE_EQ(segments.rate, 300);
  EXPECT_DOUBLE_EQ(segments.survive[0], 1);
  EXPECT_DOUBLE_EQ(segments.survive[1], 280.0 / 300);
  EXPECT_DOUBLE_EQ(segments.survive[3], 160.0 / 240);
  const Segments merged = core::MergedSegments(Nested(), 2);
  EXPECT_EQ(merged.last_stage, (std::vector<int64_t>{80, 160}));
  EXPECT_DOUBLE_EQ(merged.survive[1], 160.0 / 300);
}

TEST(NestedWait, UnknownLengthsReachTheFluidThroughput) {
  const auto fluid = core::FluidEquilibrium(Nested(), kTime);
  ASSERT_TRUE(fluid.ok());
  EXPECT_NEAR(fluid->throughput, 34'300, 1);
  EXPECT_NEAR(fluid->memory, 58'200, 200);
  for (const bool merged : {false, true}) {
    const Segments segments = merged ? core::MergedSegments(Nested(), 8) : core::SegmentsOf(Nested());
    // Margins multiply from segment to segment.
    const auto thresholds = core::NestedThresholds(segments, kTime, merged ? 1.02 : 1.1);
    ASSERT_TRUE(thresholds.ok()) << thresholds.status();
    EXPECT_TRUE(core::NestedIsStable(segments, *thresholds, kTime));
    WaitOptions options;
    options.time = kTime;
    options.horizon = 200;
    const WaitRun run = RunNestedWait(Nested(), segments, *thresholds, options);
    EXPECT_GE(run.tokens_per_s, 0.95 * fluid->throughput);
    EXPECT_LE(run.tokens_per_s, 1.02 * fluid->throughput)
        << "no policy can be above it but by luck of the draw";
  }
}

TEST(NestedWait, MemoryStaysUnderItsBound) {
  constexpr double kDelta = 0.1;
  const Segments segments = core::SegmentsOf(Nested());
  const std::vector<int64_t> thresholds = *core::NestedThresholds(segments, kTime);
  int violations = 0;
  constexpr int kRuns = 30;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    WaitOptions options;
    options.time = kTime;
    options.horizon = 30;
    options.seed = seed;
    const WaitRun run = RunNestedWait(Nested(), segments, thresholds, options);
    const double bound =
        core::NestedMemoryBound(segments, thresholds, static_cast<double>(run.iterations), kDelta);
    violations += static_cast<double>(run.peak_resident) > bound;
  }
  EXPECT_LE(violations, static_cast<int>(kDelta * kRuns));
}

}  // namespace
}  // namespace bfio::sim
