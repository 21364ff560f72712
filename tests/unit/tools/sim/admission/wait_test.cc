// WAIT and Nested WAIT against "Fluid-Based Online Scheduling under Memory Constraints": the fluid benchmark,
// the thresholds, and a simulated worker that uses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tools/sim/admission/fluid.h"
#include "tools/sim/admission/wait_tuner.h"
#include "tools/sim/admission/wait_worker.h"

namespace bfio::sim {
namespace {

// Llama-2-7B on an A100: bytes of weights and KV divided by the memory bandwidth, in seconds and seconds per
// token.
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
  const auto fluid = FluidEquilibrium(Low(), kTime);
  ASSERT_TRUE(fluid.ok()) << fluid.status();
  EXPECT_NEAR(fluid->memory, 4544, 1);
  EXPECT_DOUBLE_EQ(fluid->throughput, 32'000);
  EXPECT_NEAR(fluid->requests[0] / 11, 7.77, 0.005);
  // A batch of the equilibrium's numbers of requests takes M* tokens.
  double tokens = 0;
  for (size_t j = 0; j < 2; ++j) {
    tokens += fluid->requests[j] / static_cast<double>(Low()[j].output + 1) * core::StageTokens(Low()[j]);
  }
  EXPECT_NEAR(tokens, fluid->memory, 1e-6);
}

TEST(Fluid, AnInfeasibleLoadIsRefused) {
  const std::vector<RequestType> high = {{6000, 20, 100}, {4000, 20, 200}, {2000, 20, 300}};
  EXPECT_EQ(FluidEquilibrium(high, kTime).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(WaitThresholds(high, kTime).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(NestedThresholds(core::SegmentsOf(high), kTime).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Wait, TheSmallestStableThresholds) {
  const auto iteration = [](int64_t n) { return WaitIteration(Low(), std::vector<int64_t>{n, n}, kTime); };
  EXPECT_NEAR(iteration(8), 7.803e-3, 1e-6);
  EXPECT_NEAR(iteration(7), 7.652e-3, 1e-6);
  EXPECT_TRUE(WaitIsStable(Low(), std::vector<int64_t>{8, 8}, kTime));
  EXPECT_FALSE(WaitIsStable(Low(), std::vector<int64_t>{7, 7}, kTime));
  EXPECT_EQ(*WaitThresholds(Low(), kTime, 1), (std::vector<int64_t>{8, 8}));
  for (const double load : {0.5, 0.9, 0.98}) {
    const auto thresholds = WaitThresholds(Low(), kTime, load);
    ASSERT_TRUE(thresholds.ok());
    EXPECT_LE(WaitIteration(Low(), *thresholds, kTime) * 1000,
              load * static_cast<double>((*thresholds)[0]) + 1e-9);
  }
}

TEST(Wait, BelowTheThresholdTheIterationTimeBoundsThroughput) {
  for (const int64_t n : {6, 7}) {
    const double iteration = WaitIteration(Low(), std::vector<int64_t>{n, n}, kTime);
    const double per_type = std::min(1000.0, static_cast<double>(n) / iteration);
    EXPECT_NEAR(Wait(n, 100).tokens_per_s, per_type * 32, 0.003 * per_type * 32) << n;
  }
  EXPECT_NEAR(Wait(6, 100).tokens_per_s, 25'578, 80);
  EXPECT_NEAR(Wait(7, 100).tokens_per_s, 29'249, 90);
}

TEST(Wait, AboveItThroughputIsTheArrivalRateAndLatencyGrows) {
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

TEST(Wait, TheQueueIsBoundedAsInTheLemma) {
  // The lemma: E[W_0] <= 2 n + lambda DT / (2 (n - lambda DT)).
  const double iteration = 7.803;
  const double bound = 2 * 8 + iteration / (2 * (8 - iteration));
  const WaitRun run = Wait(8, 400);
  EXPECT_LE(run.mean_waiting[0], bound);
  EXPECT_LE(run.mean_waiting[1], bound);
}

TEST(Wait, TheGapClosesOverTimeAndNoRuleBeatsTheFluid) {
  const auto gap = [](double horizon) {
    double sum = 0;
    constexpr int kSeeds = 6;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) sum += 1 - Wait(9, horizon, seed).tokens_per_s / 32'000;
    return sum / kSeeds;
  };
  const double ten = gap(10), hundred = gap(100);
  EXPECT_NEAR(ten, 0.0122, 0.006) << "what is still under way when the time is over";
  EXPECT_NEAR(hundred, 0, 0.003);
  EXPECT_LT(hundred, ten / 2);
}

TEST(Wait, TheGapToWhatArrivedFallsAsOneOverTheTime) {
  // Against the arrivals of the run itself, so that the noise of arrivals does not count.
  const auto gap = [](double horizon) {
    const WaitRun run = Wait(9, horizon);
    return 1 - run.tokens_per_s / run.offered_tokens_per_s;
  };
  const double thousand = gap(1000);
  EXPECT_GT(thousand, 0);
  EXPECT_LT(thousand, 0.0005);
  EXPECT_NEAR(gap(100) / thousand, 10, 3);
  EXPECT_NEAR(gap(10) / thousand, 100, 30);
}

// Multiplies the load by zeta and divides iteration times by it: from zeta = `first` on the throughput is at
// most `share` below the fluid's.
template <typename Run>
void HeavyTraffic(const std::vector<RequestType>& base, double horizon, double first, double share,
                  const Run& run) {
  const double fluid = FluidEquilibrium(base, kTime)->throughput;
  double latency = 0;
  for (const double zeta : {1.0, 4.0, 16.0, 64.0}) {
    std::vector<RequestType> types = base;
    for (RequestType& type : types) type.rate *= zeta;
    WaitOptions options;
    options.time = {kTime.d0 / zeta, kTime.d1 / zeta};
    options.horizon = horizon;
    const WaitRun of = run(types, options);
    if (zeta >= first) {
      EXPECT_GE(of.tokens_per_s / (fluid * zeta), 1 - share) << zeta;
    }
    EXPECT_LE(of.tokens_per_s / (fluid * zeta), 1.02) << zeta;
    if (zeta == 1) latency = of.mean_latency;
    EXPECT_LE(of.mean_latency, 1.1 * latency);
  }
}

TEST(Wait, HeavyTrafficIsWithinTwoPerCentOfTheFluid) {
  HeavyTraffic(Low(), 8, 4, 0.02, [](const auto& types, const WaitOptions& options) {
    return RunWait(types, std::vector<int64_t>{9, 9}, options);
  });
}

TEST(NestedWait, HeavyTrafficIsWithinFivePerCentWithUnknownLengths) {
  HeavyTraffic(Nested(), 10, 64, 0.05, [](const auto& types, const WaitOptions& options) {
    const Segments segments = core::SegmentsOf(types);
    return RunNestedWait(types, segments, *NestedThresholds(segments, options.time), options);
  });
}

TEST(WaitTuner, RatesAreCountedWithTheStatedTimeConstant) {
  WaitTunerOptions options;
  options.time_constant = 2;
  WaitTuner tuner(Low(), kTime, options);
  for (int i = 1; i <= 4'000; ++i) tuner.OnArrival(0, i * 0.01);
  EXPECT_NEAR(tuner.Rate(0, 40), 100, 0.5);
  EXPECT_EQ(tuner.Rate(1, 40), 0);
  EXPECT_NEAR(tuner.Rate(0, 42), 100 / std::exp(1), 0.5) << "a time constant of silence";
  WaitTuner young(Low(), kTime, options);
  for (int i = 1; i <= 20; ++i) young.OnArrival(0, i * 0.01);
  EXPECT_NEAR(young.Rate(0, 0.2), 100, 6) << "the first seconds count in full";
}

TEST(WaitTuner, UnknownRatesConvergeToTheThresholdsOfKnownRates) {
  WaitTuner tuner(Low(), kTime);
  WaitOptions options;
  options.time = kTime;
  options.horizon = 60;
  const WaitRun run = RunTunedWait(Low(), tuner, options);
  EXPECT_NEAR(run.tokens_per_s, 32'000, 0.02 * 32'000);
  EXPECT_LT(run.mean_latency, 0.3);
  EXPECT_LE(tuner.solved(), 12) << "noise alone is no drift";
  const auto known = *WaitThresholds(Low(), kTime, 0.9);
  for (size_t j = 0; j < 2; ++j) {
    EXPECT_NEAR(static_cast<double>(tuner.Thresholds(60)[j]), static_cast<double>(known[j]), 4);
  }
}

TEST(WaitTuner, ThresholdsFollowATriplingOfRates) {
  // The paper's B.1: a third of the load for a minute, then all of it. Thresholds for the first minute are
  // too small for the second.
  std::vector<RequestType> types = {{3000, 10, 10}, {3000, 10, 20}};
  WaitOptions options;
  options.time = kTime;
  options.horizon = 120;
  options.intensity = [](double at) { return at < 60 ? 1.0 / 3 : 1; };
  const double offered = 3000 * (11 + 21) * (20 + 60) / 120;
  const WaitRun fixed = RunWait(types, *WaitThresholds(Low(), kTime, 0.9), options);
  EXPECT_LT(fixed.tokens_per_s, 0.75 * offered);
  WaitTuner tuner(types, kTime);
  const WaitRun tuned = RunTunedWait(types, tuner, options);
  EXPECT_NEAR(tuned.tokens_per_s, offered, 0.02 * offered);
  EXPECT_LT(tuned.mean_latency, 1);
  EXPECT_GT(tuner.solved(), 1);
}

TEST(WaitTuner, AnInfeasibleLoadGetsTheLargestFeasibleThresholds) {
  WaitTuner tuner(Low(), kTime);
  for (int i = 1; i <= 200'000; ++i) {
    tuner.OnArrival(0, i * 5e-5);
    tuner.OnArrival(1, i * 5e-5);
  }
  const auto thresholds = tuner.Thresholds(10);
  EXPECT_GT(thresholds[0], 100);
  EXPECT_LT(thresholds[0], 1'000'000);
}

TEST(NestedWait, DecayOfASegmentsQueue) {
  EXPECT_NEAR(SegmentDecay(6, 10, 0.5), 0.822163, 1e-6);
  EXPECT_NEAR(SegmentDecay(60, 100, 0.5), 0.822163, 1e-6) << "it does not change with the scale";
  EXPECT_NEAR(SegmentDecay(55, 100, 0.5), 0.402692, 1e-6);
  for (const double n : {51.0, 60.0, 80.0, 99.0}) {
    EXPECT_GE(SegmentDecay(n, 100, 0.5), 8 * (n - 50) / 100) << "the lower bound of the lemma";
  }
}

TEST(NestedWait, TheQueueIsUnderTheExponentialBound) {
  // Lindley's recursion of the queue: W <- max(W - n, 0) + Binomial(n_before, p).
  constexpr int64_t kBefore = 10, kN = 6, kSteps = 400'000;
  const double theta = SegmentDecay(kN, kBefore, 0.5);
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
  const Segments merged = MergedSegments(Nested(), 2);
  EXPECT_EQ(merged.last_stage, (std::vector<int64_t>{80, 160}));
  EXPECT_DOUBLE_EQ(merged.survive[1], 160.0 / 300);
}

TEST(NestedWait, UnknownLengthsReachTheFluidThroughput) {
  const auto fluid = FluidEquilibrium(Nested(), kTime);
  ASSERT_TRUE(fluid.ok());
  EXPECT_NEAR(fluid->throughput, 34'300, 1);
  EXPECT_NEAR(fluid->memory, 58'200, 200);
  for (const bool merged : {false, true}) {
    const Segments segments = merged ? MergedSegments(Nested(), 8) : core::SegmentsOf(Nested());
    // Margins multiply from segment to segment, so many segments need smaller ones.
    const auto thresholds = NestedThresholds(segments, kTime, merged ? 1.02 : 1.1);
    ASSERT_TRUE(thresholds.ok()) << thresholds.status();
    EXPECT_TRUE(NestedIsStable(segments, *thresholds, kTime));
    WaitOptions options;
    options.time = kTime;
    options.horizon = 200;
    const WaitRun run = RunNestedWait(Nested(), segments, *thresholds, options);
    EXPECT_GE(run.tokens_per_s, 0.95 * fluid->throughput);
    EXPECT_LE(run.tokens_per_s, 1.02 * fluid->throughput)
        << "no policy can be above it but by luck of the draw";
  }
}

TEST(NestedWait, MemoryStaysUnderItsBoundInAllButDeltaOfRuns) {
  // If the bound holds, more than delta n + 3 sd violations in n runs have a probability of at most 1 in 700.
  const Segments segments = core::SegmentsOf(Nested());
  constexpr int kRuns = 150;
  for (const double margin : {1.02, 1.1}) {
    const std::vector<int64_t> whole = *NestedThresholds(segments, kTime, margin);
    const std::vector<double> thresholds(whole.begin(), whole.end());
    double largest = 0;
    std::vector<std::pair<double, int>> violations = {{0.02, 0}, {0.1, 0}, {0.5, 0}};
    for (uint64_t seed = 1; seed <= kRuns; ++seed) {
      WaitOptions options;
      options.time = kTime;
      options.horizon = 8;
      options.seed = seed;
      const WaitRun run = RunNestedWait(Nested(), segments, whole, options);
      for (auto& [delta, count] : violations) {
        const double bound =
            NestedMemoryBound(segments, thresholds, static_cast<double>(run.iterations), delta).Bound();
        count += static_cast<double>(run.peak_resident) > bound;
        largest = std::max(largest, static_cast<double>(run.peak_resident) / bound);
      }
    }
    for (const auto& [delta, count] : violations) {
      EXPECT_LE(count, delta * kRuns + 3 * std::sqrt(delta * (1 - delta) * kRuns)) << delta << " " << margin;
    }
    EXPECT_GT(largest, 0.2) << "a bound that says something";
  }
}

// Types of equal spacing: the form of B.2 for segments of equal width applies.
const std::vector<RequestType>& Spaced() {
  static const std::vector<RequestType> types = {{60, 10, 40}, {60, 10, 80}, {60, 10, 120}, {60, 10, 160}};
  return types;
}

TEST(NestedWait, TheLargestBatchIsTheExactSumAndNotThePrintedOnes) {
  const Segments segments = core::SegmentsOf(Spaced());
  const std::vector<int64_t> thresholds = *NestedThresholds(segments, kTime);
  WaitOptions options;
  options.time = kTime;
  options.horizon = 100;
  const WaitRun run = RunNestedWait(Spaced(), segments, thresholds, options);
  const std::vector<double> n(thresholds.begin(), thresholds.end());
  const NestedMemory memory = NestedMemoryBound(segments, n, 1e4, 0.1);
  EXPECT_EQ(run.peak_batch, memory.peak);
  EXPECT_EQ(memory.peak, NestedPeakTokens(segments, thresholds));
  EXPECT_LT(memory.printed_equal_peak, 0.85 * memory.peak) << "B.2's form";
  EXPECT_GT(memory.printed_peak, 1.1 * memory.peak) << "the form of Theorem 5.1's proof";
}

TEST(NestedWait, PeakMemoryIsUShapedInTheNumberOfSegments) {
  // 500 lengths, exponential with mean 120, prompts of 62 tokens, 50 requests per second, thresholds 2 %
  // above what reaches them: peak tokens by the number of segments.
  std::vector<RequestType> types;
  double sum = 0;
  for (int64_t k = 1; k <= 500; ++k) {
    types.push_back({std::exp(-static_cast<double>(k) / 120), 62, k});
    sum += types.back().rate;
  }
  for (RequestType& type : types) type.rate *= 50 / sum;
  struct Case {
    int64_t segments;
    double peak;
  };
  for (const Case& c :
       {Case{2, 81.0e3}, {5, 16.3e3}, {10, 11.9e3}, {20, 11.0e3}, {50, 13.3e3}, {100, 24.3e3}}) {
    const Segments segments = MergedSegments(types, c.segments);
    const NestedMemory memory =
        NestedMemoryBound(segments, NestedFluidThresholds(segments, kTime, 1.02, 1), 1e4, 0.1);
    EXPECT_NEAR(memory.peak / c.peak, 1, 0.05) << c.segments;
    if (c.segments > 2) {
      EXPECT_GT(memory.excess, memory.peak) << "the last term dominates, not the first";
    }
  }
}

TEST(Wait, MemoryNeverExceedsThePeakOfItsThresholds) {
  for (const double load : {0.5, 0.95}) {
    const std::vector<int64_t> thresholds = *WaitThresholds(Low(), kTime, load);
    WaitOptions options;
    options.time = kTime;
    options.horizon = 20;
    EXPECT_LE(RunWait(Low(), thresholds, options).peak_resident, WaitPeakTokens(Low(), thresholds)) << load;
  }
}

TEST(Wait, BoundedMemoryHoldsAndRequestsStillEnd) {
  // More arrives than memory sustains, and thresholds are too large for memory.
  std::vector<RequestType> types = Nested();
  for (RequestType& type : types) type.rate *= 2;
  WaitOptions options;
  options.time = kTime;
  options.horizon = 20;
  options.memory = 60'000;
  const double most = ThroughputWithin(types, kTime, 60'000);
  const std::vector<int64_t> large(types.size(), 40), within = WaitThresholdsWithin(types, 0.99 * 60'000);
  EXPECT_LE(WaitPeakTokens(types, within), 0.99 * 60'000);
  const Segments segments = core::SegmentsOf(types);
  for (const WaitRun& run : {RunWait(types, large, options), RunWait(types, within, options),
                             RunNestedWait(types, segments, large, options)}) {
    EXPECT_LE(run.peak_resident, 60'000);
    EXPECT_GT(run.peak_resident, 40'000);
    EXPECT_GT(run.completed, 0);
    EXPECT_GT(run.tokens_per_s, 0.3 * most);
  }
  EXPECT_EQ(RunWait(types, within, options).evictions, 0);
}

TEST(NestedWait, ThresholdsWithinMemoryFillIt) {
  const Segments segments = core::SegmentsOf(Nested());
  const std::vector<int64_t> thresholds = NestedThresholdsWithin(segments, 1.1, 120'000);
  EXPECT_LE(NestedPeakTokens(segments, thresholds), 120'000);
  EXPECT_GT(NestedPeakTokens(segments, thresholds), 0.9 * 120'000);
}

}  // namespace
}  // namespace bfio::sim
