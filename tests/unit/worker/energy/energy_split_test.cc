// Splitting the energy of time windows, against a device that follows the power model, and conservation of
// joules and seconds.
#include "worker/energy/energy_split.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/rng.h"
#include "tools/sim/run/energy.h"

namespace bfio::worker {
namespace {

TEST(EnergySplit, FindsTheSharesOfADeviceThatFollowsTheModel) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    const sim::PowerModel power{.idle_w = 50 + 100 * rng.Uniform(), .peak_w = 300 + 400 * rng.Uniform()};
    EnergySplit split;
    split.AddWindow(5 * power.idle_w, 5, 0, 0);
    ASSERT_TRUE(split.idle_watts().has_value());
    double busy_j = 0, barrier_j = 0, parked_j = 5 * power.idle_w;
    for (int i = 0; i < 50; ++i) {
      const double busy = rng.Uniform() + 1e-3, barrier = rng.Uniform(),
                   parked = rng.Below(2) * rng.Uniform();
      split.AddWindow(power.BusyJoules({busy}, busy + barrier) + power.idle_w * parked,
                      busy + barrier + parked, busy, barrier);
      busy_j += power.peak_w * busy;
      barrier_j += power.idle_w * barrier;
      parked_j += power.idle_w * parked;
    }
    EXPECT_NEAR(split.sums().busy_j, busy_j, 1e-9 * busy_j);
    EXPECT_NEAR(split.sums().barrier_j, barrier_j, 1e-9 * barrier_j);
    EXPECT_NEAR(split.sums().parked_j, parked_j, 1e-9 * parked_j);
    EXPECT_NEAR(*split.idle_watts(), power.idle_w, 1e-9 * power.idle_w);
  }
}

TEST(EnergySplit, EveryJouleAndSecondIsCountedOnce) {
  Rng rng(1);
  EnergySplit split;
  double joules = 0, seconds = 0;
  for (int i = 0; i < 1'000; ++i) {
    const double window = 0.01 + rng.Uniform(), drawn = 700 * rng.Uniform() * window;
    // Includes reported times that exceed the window.
    split.AddWindow(drawn, window, rng.Below(3) * rng.Uniform() * window,
                    rng.Below(3) * rng.Uniform() * window);
    joules += drawn, seconds += window;
    EXPECT_NEAR(split.watts(), drawn / window, 1e-9);
  }
  const EnergySums& sums = split.sums();
  EXPECT_NEAR(sums.busy_j + sums.barrier_j + sums.parked_j, joules, 1e-9 * joules);
  EXPECT_NEAR(sums.busy_s + sums.barrier_s + sums.parked_s, seconds, 1e-9 * seconds);
}

TEST(EnergySplit, WithoutAnIdlePowerEnergyIsSplitByTime) {
  EnergySplit split;
  split.AddWindow(1'000, 10, 6, 4);
  EXPECT_FALSE(split.idle_watts().has_value());
  EXPECT_DOUBLE_EQ(split.sums().busy_j, 600);
  EXPECT_DOUBLE_EQ(split.sums().barrier_j, 400);
}

TEST(EnergySplit, TheLowestPowerIsTheIdlePower) {
  EnergySplit split;
  split.AddWindow(900, 5, 0, 0);  // the device is still hot
  split.AddWindow(500, 5, 0, 0);
  split.AddWindow(700, 5, 0, 0);
  split.AddWindow(100, 5, 1, 0);  // parked for most of the window
  EXPECT_DOUBLE_EQ(*split.idle_watts(), 100);
}

TEST(EnergySplit, InvalidWindowsAreIgnored) {
  EnergySplit split;
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinity, -1.0}) {
    split.AddWindow(bad, 5, 1, 1);
    split.AddWindow(5, bad, 1, 1);
    split.AddWindow(5, 5, bad, 1);
    split.AddWindow(5, 5, 1, bad);
  }
  split.AddWindow(5, 0, 0, 0);
  EXPECT_EQ(split.sums().busy_j, 0);
  EXPECT_EQ(split.sums().busy_s, 0);
  EXPECT_FALSE(split.idle_watts().has_value());
}

}  // namespace
}  // namespace bfio::worker
