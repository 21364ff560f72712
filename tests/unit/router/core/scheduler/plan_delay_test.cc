// By how much plans that are due are delayed.
#include "router/core/scheduler/plan_delay.h"

#include "gtest/gtest.h"

namespace bfio::core {
namespace {

constexpr double kStepTime = 0.04;
// 3/4 of kStepTime, minus 3 ms.
constexpr double kMostDelay = 0.027;

double DelayAfter(PlanDelay& delay, int steps, double step_s = kStepTime) {
  double delay_s = 0;
  for (int i = 0; i < steps; ++i) delay_s = delay.OnStep(step_s, false);
  return delay_s;
}

TEST(PlanDelayTest, GrowsWhilePlansAreInTimeAndLeavesTheLastQuarterOfAStep) {
  PlanDelay delay;
  EXPECT_EQ(DelayAfter(delay, 15), 0) << "durations of steps are not known yet";
  EXPECT_NEAR(DelayAfter(delay, 1), 16.0 / 256 * kMostDelay, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 112), 128.0 / 256 * kMostDelay, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 1000), kMostDelay, 1e-9);
}

TEST(PlanDelayTest, ALatePlanHalvesItAndTheNextOneIsMadeAtOnce) {
  PlanDelay delay;
  DelayAfter(delay, 1000);
  EXPECT_EQ(delay.OnStep(kStepTime, true), 0);
  EXPECT_NEAR(DelayAfter(delay, 1), (0.5 + 1.0 / 256) * kMostDelay, 1e-9);
  for (int i = 0; i < 20; ++i) delay.OnStep(kStepTime, true);
  EXPECT_LT(DelayAfter(delay, 1), kMostDelay / 100);
}

TEST(PlanDelayTest, TheShortestOfTheLastStepsCounts) {
  PlanDelay delay;
  DelayAfter(delay, 1000);
  EXPECT_NEAR(delay.OnStep(kStepTime / 2, false), 0.012, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 15, 2 * kStepTime), 0.012, 1e-9);
  EXPECT_NEAR(DelayAfter(delay, 1, 2 * kStepTime), 0.057, 1e-9) << "the short one was 16 steps ago";
}

TEST(PlanDelayTest, ShortStepsLeaveNoTime) {
  PlanDelay delay;
  EXPECT_EQ(DelayAfter(delay, 1000, 0.004), 0);
  EXPECT_EQ(DelayAfter(delay, 1000, 0), 0);
}

}  // namespace
}  // namespace bfio::core
