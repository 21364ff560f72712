// The step costs that workers report, as the times that plans balance.
#include "router/core/scheduler/worker_speeds.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/plan_delay.h"

namespace bfio::core {
namespace {

constexpr double kC = 0.005, kTl = 1e-7;
constexpr int64_t kLoad = 50'000;

WorkerCost Cost(double c, double tl, double relative_error = 0.001, int64_t load = kLoad) {
  StepCostEstimate estimate = {.c = FittedValue{c, relative_error * c},
                               .tl = FittedValue{tl, relative_error * tl}};
  return {estimate, load};
}

bool Equal(const std::vector<WorkerTime>& times) {
  for (const WorkerTime& time : times) {
    if (time.time_per_token != 1 || time.time_offset != 0) return false;
  }
  return true;
}

// Differences of times must match those of the costs, in tokens of the reference worker.
void ExpectTimes(const std::vector<WorkerCost>& costs, const std::vector<WorkerTime>& times, double tl) {
  ASSERT_EQ(costs.size(), times.size());
  for (const double load : {0.0, 1e3, 1e6}) {
    for (size_t g = 0; g < costs.size(); ++g) {
      const auto seconds = [&](size_t i) {
        return costs[i].estimate->c->value + costs[i].estimate->tl->value * load;
      };
      const auto tokens = [&](size_t i) { return times[i].time_offset + times[i].time_per_token * load; };
      EXPECT_NEAR(tokens(g) - tokens(0), (seconds(g) - seconds(0)) / tl, 1e-6 * (1 + seconds(g) / tl));
    }
  }
}

TEST(WorkerSpeeds, AreTheCostsRatiosToTheOrdinaryWorkers) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    std::vector<WorkerCost> costs(2 + rng.Below(15));
    std::vector<double> tls;
    for (WorkerCost& cost : costs) {
      cost = Cost(kC * (0.2 + 2 * rng.Uniform()), kTl * (0.2 + 2 * rng.Uniform()));
      tls.push_back(cost.estimate->tl->value);
    }
    std::sort(tls.begin(), tls.end());
    const std::vector<WorkerTime> times = TimesOf(costs, std::vector<WorkerTime>(costs.size()));
    for (const WorkerTime& time : times) EXPECT_GE(time.time_offset, 0);
    if (Equal(times)) continue;
    ExpectTimes(costs, times, tls[(tls.size() - 1) / 2]);
  }
}

TEST(WorkerSpeeds, NearlyEqualWorkersAreExactlyEqual) {
  const std::vector<WorkerCost> costs = {Cost(kC, kTl), Cost(1.03 * kC, 1.04 * kTl), Cost(0.98 * kC, kTl)};
  EXPECT_TRUE(Equal(TimesOf(costs, std::vector<WorkerTime>(3))));
  EXPECT_TRUE(Equal(TimesOf(costs, {{1, 0}, {2, 5'000}, {1, 0}}))) << "also if they differed before";
}

TEST(WorkerSpeeds, AnUnmeasuredWorkerCountsAsAReference) {
  std::vector<WorkerCost> costs = {Cost(kC, kTl), Cost(2 * kC, 2 * kTl, 0.2), {std::nullopt, kLoad}};
  // No other worker is known well enough to compare with.
  EXPECT_TRUE(Equal(TimesOf(costs, std::vector<WorkerTime>(3))));
  costs[1] = Cost(2 * kC, 2 * kTl);
  const std::vector<WorkerTime> times = TimesOf(costs, std::vector<WorkerTime>(3));
  EXPECT_EQ(times[1].time_per_token, 2);
  EXPECT_EQ(times[2].time_per_token, times[0].time_per_token);
  EXPECT_EQ(times[2].time_offset, times[0].time_offset);
  // A t_l of 0 is unknown, and so is a worker without C.
  costs[1] = Cost(kC, 0);
  EXPECT_TRUE(Equal(TimesOf(costs, std::vector<WorkerTime>(3))));
  costs[1] = Cost(kC, 3 * kTl);
  costs[1].estimate->c.reset();
  EXPECT_TRUE(Equal(TimesOf(costs, std::vector<WorkerTime>(3))));
  EXPECT_TRUE(TimesOf({}, {}).empty());
}

// Fits that keep moving within their own error: times change only once, when the workers become
// known.
TEST(WorkerSpeeds, NoiseDoesNotMakeThemFlap) {
  for (const double slow : {1.0, 1.07, 1.3, 2.0}) {
    Rng rng(static_cast<uint64_t>(slow * 100));
    std::vector<WorkerTime> times(4);
    int changes = 0;
    for (int i = 0; i < 5'000; ++i) {
      std::vector<WorkerCost> costs;
      for (int g = 0; g < 4; ++g) {
        const double k = (g == 2 ? slow : 1) * (1 + 0.01 * rng.Normal());
        costs.push_back(Cost(kC * k, kTl * (g == 2 ? slow : 1) * (1 + 0.01 * rng.Normal()), 0.01,
                             kLoad + static_cast<int64_t>(rng.Below(10'000))));
      }
      const std::vector<WorkerTime> next = TimesOf(costs, times);
      for (int g = 0; g < 4; ++g) {
        if (next[g].time_per_token != times[g].time_per_token ||
            next[g].time_offset != times[g].time_offset) {
          ++changes;
          break;
        }
      }
      times = next;
    }
    EXPECT_LE(changes, slow >= 1.3 ? 2 : 0) << slow;
    if (slow < 1.3) continue;
    EXPECT_NEAR(times[2].time_per_token / times[0].time_per_token, slow, 0.1 * slow);
  }
}

// A large difference per token is small when loads are small against C, and vice versa.
TEST(WorkerSpeeds, StepsAreComparedNotCoefficients) {
  for (const int64_t load : {500, 500'000}) {
    EXPECT_EQ(Equal(TimesOf({{Cost(kC, kTl, 0.001, load), Cost(kC, 1.4 * kTl, 0.001, load)}},
                            std::vector<WorkerTime>(2))),
              load == 500);
  }
}

TEST(WorkerSpeeds, AbsurdCostsStayWithinBounds) {
  for (const WorkerTime& time :
       TimesOf({{Cost(1e3, 1e-15), Cost(0, 1), Cost(0, 1e-9)}}, std::vector<WorkerTime>(3))) {
    EXPECT_TRUE(time.time_per_token >= 1 / WorkerSpeeds::kMost && time.time_per_token <= WorkerSpeeds::kMost);
    EXPECT_TRUE(time.time_offset >= 0 && time.time_offset <= WorkerSpeeds::kMostOffset);
  }
}

TEST(ServiceTimes, AreReportedOnesOrElseMeasuredSteps) {
  const std::vector<double> ones = {1, 1}, silent = {0, 0}, half = {3, 0};
  const std::vector<WorkerCost> costs = {Cost(kC, kTl), Cost(3 * kC, 3 * kTl)};
  EXPECT_EQ(ServiceTimesOf(std::vector<double>{2, 5}, costs, ones), (std::vector<double>{2, 5}));
  EXPECT_EQ(ServiceTimesOf(half, costs, ones), (std::vector<double>{3, 3})) << "as the slowest told";
  EXPECT_EQ(ServiceTimesOf(std::vector<double>{3, 0, 5}, {}, std::vector<double>{1, 1, 1}),
            (std::vector<double>{3, 5, 5}));
  const std::vector<double> times = ServiceTimesOf(silent, costs, ones);
  EXPECT_NEAR(times[0], 1, 1e-9);
  EXPECT_NEAR(times[1], 3, 1e-9);
  EXPECT_EQ(ServiceTimesOf(silent, {}, times), times) << "no costs: as before";
  EXPECT_EQ(ServiceTimesOf(silent, {Cost(kC, kTl), WorkerCost{}}, ones), ones);
  // A change of 5 % is ignored, and no worker counts as more than kMost times slower.
  const std::vector<double> near = {1, 1.05}, far = {1, WorkerSpeeds::kMost};
  EXPECT_EQ(ServiceTimesOf(silent, {Cost(kC, kTl), Cost(kC, kTl)}, near), near);
  EXPECT_EQ(ServiceTimesOf(silent, {Cost(kC, kTl), Cost(100 * kC, 100 * kTl)}, ones), far);
  // With a load of 0 or below, or steps without cost, times must still be valid.
  for (const int64_t load : {0, -1000}) {
    for (const double c : {0.0, kC}) {
      for (const double time :
           ServiceTimesOf(silent, {Cost(0, kTl, 0.001, load), Cost(c, 2 * kTl, 0.001, load)}, ones)) {
        EXPECT_TRUE(time >= 1 && time <= WorkerSpeeds::kMost) << time;
      }
    }
  }
}

// --- delays of plans ---

// By how much plans that are due are delayed.

// 3/4 of a step of 40 ms, minus 3 ms.
constexpr double kMostDelay = 0.027;

double DelayAfter(PlanDelay& delay, int steps, double step_s = 0.04, bool late = false) {
  double delay_s = 0;
  for (int i = 0; i < steps; ++i) delay_s = delay.OnStep(step_s, late);
  return delay_s;
}

TEST(PlanDelayTest, GrowsWhilePlansAreInTimeAndIsHalvedByALateOne) {
  PlanDelay delay;
  EXPECT_EQ(DelayAfter(delay, 15), 0) << "durations of steps are not known yet";
  EXPECT_NEAR(DelayAfter(delay, 1), 16.0 / 256 * kMostDelay, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 112), 128.0 / 256 * kMostDelay, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 1000), kMostDelay, 1e-9);
  EXPECT_EQ(DelayAfter(delay, 1, 0.04, true), 0) << "the next plan is made at once";
  EXPECT_NEAR(DelayAfter(delay, 1), (0.5 + 1.0 / 256) * kMostDelay, 1e-9);
  DelayAfter(delay, 20, 0.04, true);
  EXPECT_LT(DelayAfter(delay, 1), kMostDelay / 100);
}

TEST(PlanDelayTest, TheShortestOfTheLastStepsCountsAndShortStepsLeaveNoTime) {
  PlanDelay delay;
  DelayAfter(delay, 1000);
  EXPECT_NEAR(DelayAfter(delay, 1, 0.02), 0.012, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 15, 0.08), 0.012, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 1, 0.08), 0.057, 1e-9) << "the short one was 16 steps ago";
  EXPECT_EQ(DelayAfter(delay, 1000, 0.004), 0);
  EXPECT_EQ(DelayAfter(delay, 1000, 0), 0);
}

}  // namespace
}  // namespace bfio::core
