// Seeds and loads have the same meaning for every workload.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/statistics.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

TEST(WorkloadTest, BurstsComeTogetherAtTheSameRate) {
  const Trace trace = WithArrivals(*SampleProfile("conversation", 100'000, 1), 3, 64);
  int64_t bursts = 1;
  for (size_t i = 1; i < trace.requests.size(); ++i) {
    ASSERT_GE(trace.requests[i].arrival_s, trace.requests[i - 1].arrival_s);
    bursts += trace.requests[i].arrival_s > trace.requests[i - 1].arrival_s ? 1 : 0;
  }
  EXPECT_NEAR(100'000.0 / static_cast<double>(bursts), 64, 6);
  EXPECT_NEAR(ArrivalRate(trace), 1, 0.1);
}

Trace Three() {
  return {.has_arrivals = true, .requests = {{0, 10, 1}, {1, 20, 2}, {4, 30, 3}}};
}

// The gap to a repetition is never 0: a run that reveals what has come by a time ends.
TEST(RequestSourceTest, RequestsThatComeTogetherComeAgainLater) {
  const Trace trace{.has_arrivals = true, .requests = {{0, 10, 1}, {0, 20, 2}, {0, 30, 3}}};
  RequestSource source(trace, 2, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(source.Next().arrival_s, 0);
  EXPECT_EQ(source.NextArrival(), 0.5);
}

auto Row(const TraceRequest& request) {
  return std::make_tuple(request.arrival_s, request.prompt_tokens, request.output_tokens);
}

TEST(RotatedTest, SeedOneKeepsTheTrace) {
  const Trace trace = Three(), rotated = Rotated(trace, 1);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Row(rotated.requests[i]), Row(trace.requests[i]));
}

// The trace repeats after 4 * 3 / 2 = 6 s: the gap from its end to its start is the mean gap.
TEST(RotatedTest, OtherSeedsStartElsewhereAndKeepTheGaps) {
  bool seen[3] = {};
  for (uint64_t seed = 2; seed < 40; ++seed) {
    const std::vector<TraceRequest> requests = Rotated(Three(), seed).requests;
    const int start = static_cast<int>(requests[0].prompt_tokens / 10) - 1;
    ASSERT_TRUE(start >= 0 && start < 3);
    seen[start] = true;
    EXPECT_DOUBLE_EQ(requests[0].arrival_s, 0);
    if (start == 1) {
      EXPECT_EQ(Row(requests[1]), std::make_tuple(3.0, 30, 3));
      EXPECT_EQ(Row(requests[2]), std::make_tuple(5.0, 10, 1));
    } else if (start == 2) {
      EXPECT_EQ(Row(requests[1]), std::make_tuple(2.0, 10, 1));
      EXPECT_EQ(Row(requests[2]), std::make_tuple(3.0, 20, 2));
    }
  }
  EXPECT_TRUE(seen[0] && seen[1] && seen[2]) << "38 seeds and some start was never drawn";
}

TEST(PoissonTest, ArrivalsAreOnePerSecondOrderedAndSeeded) {
  const Trace trace = *SampleProfile("code", 20'000, 1);
  const Trace arrivals = WithArrivals(trace, 4);
  EXPECT_TRUE(arrivals.has_arrivals);
  EXPECT_NEAR(ArrivalRate(arrivals), 1, 0.03);
  EXPECT_TRUE(
      std::is_sorted(arrivals.requests.begin(), arrivals.requests.end(),
                     [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; }));
  EXPECT_EQ(arrivals.requests[7].arrival_s, WithArrivals(trace, 4).requests[7].arrival_s);
  EXPECT_NE(arrivals.requests[7].arrival_s, WithArrivals(trace, 5).requests[7].arrival_s);
}

// Three requests of 1, 2, 3 steps: E[o] = 2; mean load of an occupied slot (10 + 2 * 20.5 + 3 * 31) / 6 = 24.
TEST(FullSlotRateTest, ByHand) {
  StepCost cost = {.c_s = 1, .tl_s_per_token = 0.1};
  EXPECT_DOUBLE_EQ(MeanFreeSlots(Three(), 4, 5), 10);
  EXPECT_DOUBLE_EQ(FullSlotRequestRate(Three(), 4, 5, cost), 10 / (1 + 0.1 * 5 * 24));
}

// Balance is imperfect, so the group falls behind when offered exactly its full-slot rate, but not when
// offered nine tenths of it.
TEST(FullSlotRateTest, IsWhereQueuesBegin) {
  const Trace trace = WithArrivals(*SampleProfile("code", 20'000, 1), 1);
  SimOptions options = {.policy = "lpt", .mode = "arrivals", .steps = 1500};
  const auto wait = [&](double utilisation) {
    options.load = utilisation * FullSlotRequestRate(trace, options.workers, options.batch, options.cost) /
                   ArrivalRate(trace);
    return (*(*Simulation::Create(options, trace))->Run())["wait_steps_mean"].get<double>();
  };
  EXPECT_LT(wait(0.9), 1);
  EXPECT_GT(wait(1.1), 20);
}

// Exact counts distinguish adjacent values, such as 200 and 201, which a bucketed histogram merges.
TEST(WaitCountsTest, QuantilesAreThoseOfTheSortedWaits) {
  Rng rng(4);
  for (int trial = 0; trial < 100; ++trial) {
    WaitCounts counts;
    EXPECT_EQ(counts.Quantile(0.99), 0);
    std::vector<int64_t> waits(1 + rng.Below(100));
    for (int64_t& wait : waits)
      counts.Add(wait = static_cast<int64_t>(rng.Below(rng.Below(9) == 0 ? 3000 : 4)));
    std::sort(waits.begin(), waits.end());
    const auto size = static_cast<double>(waits.size());
    for (const double p : {0.0, 0.5, 0.51, 0.98, 0.99, 1.0}) {
      const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(p * size - 1e-9)));
      EXPECT_EQ(counts.Quantile(p), waits[rank - 1]) << p << " of " << size;
    }
    EXPECT_EQ(counts.max(), waits.back());
    EXPECT_EQ(counts.count(), static_cast<int64_t>(waits.size()));
    EXPECT_NEAR(counts.mean(),
                static_cast<double>(std::accumulate(waits.begin(), waits.end(), int64_t{0})) / size, 1e-9);
  }
}

}  // namespace
}  // namespace bfio::sim
