// Detects whether ranks step together.
#include "router/engine_link/barrier_watch.h"

#include "gtest/gtest.h"

namespace bfio::router {
namespace {

// Runs steps of two decoding ranks; the second one takes `part` steps for each step of the first.
std::string Watch(BarrierWatch& watch, int steps, double part) {
  double second = 0;
  for (int i = 0; i < steps; ++i) {
    watch.OnStep(1, true);
    for (second += part; second >= 1; --second) watch.OnStep(2, true);
  }
  return watch.TakeWarning();
}

TEST(BarrierWatchTest, RanksOfABarrierTakeTheSameSteps) {
  BarrierWatch watch;
  EXPECT_EQ(Watch(watch, 5'000, 1), "");
  // Inferred steps that are sometimes split.
  EXPECT_EQ(Watch(watch, 5'000, 0.8), "");
}

TEST(BarrierWatchTest, RanksThatStepByThemselvesAreNamedOnce) {
  BarrierWatch watch;
  const int64_t window = BarrierWatch::kSteps;
  EXPECT_EQ(Watch(watch, static_cast<int>(window * (BarrierWatch::kWindows - 1)), 0.5), "");
  EXPECT_EQ(Watch(watch, static_cast<int>(window * 2), 0.5),
            "one of its ranks took 128 steps while another that decoded took 64");
  EXPECT_EQ(Watch(watch, 5'000, 0.5), "");
}

TEST(BarrierWatchTest, ARankWithoutDecodesIsNotMissed) {
  BarrierWatch watch;
  EXPECT_EQ(Watch(watch, 300, 0.5), "");
  watch.OnIdle(2);
  EXPECT_EQ(Watch(watch, 5'000, 0), "");
}

TEST(BarrierWatchTest, CountsBeginAnewWithEachRankThatBeginsOrEnds) {
  BarrierWatch watch;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Watch(watch, 100, 0.5), "");
    watch.OnStep(2, false);
  }
}

}  // namespace
}  // namespace bfio::router
