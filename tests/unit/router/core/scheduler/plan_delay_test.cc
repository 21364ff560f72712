// By how much plans that are due are delayed.
#include "router/core/scheduler/plan_delay.h"

#include "gtest/gtest.h"

namespace bfio::core {
namespace {

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
