// Verdicts on growth: their values, their rate of false alarms, and what deceives them.
#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/tools/sim/network/network_runs.h"
#include "tools/sim/network/examples.h"

namespace bfio::sim {
namespace {

std::vector<int64_t> Ramp(size_t samples, int64_t from, int64_t step) {
  std::vector<int64_t> ramp(samples);
  for (size_t i = 0; i < samples; ++i) ramp[i] = from + step * static_cast<int64_t>(i);
  return ramp;
}

TEST(GrowthTest, SlopeOfARampIsItsSlope) {
  std::vector<int64_t> ramp = Ramp(100, 1000, 6);
  EXPECT_NEAR(SecondHalfSlope(ramp, 2), 3, 1e-9);
  std::fill(ramp.begin(), ramp.begin() + 50, 0);  // the first half does not count
  EXPECT_NEAR(SecondHalfSlope(ramp, 2), 3, 1e-9);
}

TEST(GrowthTest, PeaksOfARampGrowAtItsSlopeAndOfACycleNotAtAll) {
  EXPECT_DOUBLE_EQ(PeakGrowth(Ramp(100, 1000, 6), 2), 3);
  EXPECT_DOUBLE_EQ(PeakGrowth(Ramp(100, 1000, -6), 2), 0);
  std::vector<int64_t> saw(100);
  for (size_t i = 0; i < saw.size(); ++i) saw[i] = static_cast<int64_t>(i % 10);
  EXPECT_DOUBLE_EQ(PeakGrowth(saw, 1), 0);
  saw[99] = 99;
  EXPECT_DOUBLE_EQ(PeakGrowth(saw, 1), 1);
}

// Rises to t at t = 1, 4, 16, 64 ... and falls to half of that in between. The peaks of a run grow by at
// least 0.9 / 8, wherever it ends; its slope is negative half of the time.
TEST(GrowthTest, AGrowingOscillationDeceivesTheSlopeButNotThePeaks) {
  std::vector<int64_t> tokens;
  for (int64_t peak = 1, t = 0; peak <= 4096; peak *= 4) {
    for (; t <= peak; ++t) tokens.push_back(std::max(peak / 2 - t, 2 * t - peak));
  }
  int falling = 0, ends = 0;
  for (size_t end = 64; end <= tokens.size(); end += 16, ++ends) {
    const absl::Span<const int64_t> run = absl::MakeConstSpan(tokens).first(end);
    falling += SecondHalfSlope(run, 1) < 0;
    EXPECT_GT(PeakGrowth(run, 1), 0.1) << end;
  }
  EXPECT_GT(falling, ends / 4);
}

TEST(GrowthTest, VerdictNeedsAllRuns) {
  EXPECT_EQ(JudgeGrowth({3, 4, 5}, 2).kind, GrowthVerdict::kGrows);
  EXPECT_EQ(JudgeGrowth({1, 0, -5}, 2).kind, GrowthVerdict::kBounded);
  EXPECT_EQ(JudgeGrowth({1, 3, 3}, 2).kind, GrowthVerdict::kUndecided);
  EXPECT_DOUBLE_EQ(JudgeGrowth({1, 3, 4, 3}, 2).median, 3);
}

// A verdict is wrong with probability 2^-n if a run is on the wrong side with probability at most a half.
// Here 30 runs are 3 % below capacity and 30 are 2 % above it, and hardly any is on the wrong side: requests
// of 2 + 2 tokens to an engine with 16 tokens a slot. Below capacity peaks grow as growth.h says: s = 4 / (2
// x 0.03) = 67 tokens, 2.6 s / 6,000 slots = 0.029.
TEST(GrowthTest, VerdictsAreRightOnBothSidesOfCapacity) {
  const auto rises = [](double load) {
    Network network{.engines = 1, .token_budget = 16};
    network.types = {{"request", 4 * load, {{0, 1, {2}, {2}, {}}}}};
    EXPECT_DOUBLE_EQ(network.Load(0), load);
    return Rises(network, {.order = CallOrder::kCallAge, .horizon = 6000}, 30);
  };
  const double threshold = 0.005 * 16;
  const auto above = [&](const std::vector<double>& all) {
    return std::count_if(all.begin(), all.end(), [&](double rise) { return rise > threshold; });
  };
  const std::vector<double> stable = rises(0.97);
  EXPECT_LE(above(stable), 3);
  EXPECT_NEAR(Mean(stable), 0.029, 0.015);
  EXPECT_GE(above(rises(1.02)), 27);
}

// The limitation that growth.h describes: while a stable system fills up, most slopes are positive, and a
// sign test on them would say "grows" far more often than with probability 2^-n.
TEST(GrowthTest, StartUpDeceivesTheSlopeOfAShortRun) {
  const std::vector<double> slopes =
      Slopes(ParallelEngines(1, 0.98), {.order = CallOrder::kCallAge, .horizon = 60}, 40);
  EXPECT_GT(std::count_if(slopes.begin(), slopes.end(), [](double slope) { return slope > 0; }), 24);
}

}  // namespace
}  // namespace bfio::sim
