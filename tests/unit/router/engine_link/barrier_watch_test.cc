// Detects whether ranks step together.
#include "router/engine_link/engine_barrier.h"

#include "gtest/gtest.h"

namespace bfio::router {
namespace {

// Runs steps of two decoding ranks; the second one takes `part` steps for each step of the first.
std::string Watch(BarrierWatch& watch, int64_t steps, double part) {
  double second = 0;
  for (int64_t i = 0; i < steps; ++i) {
    watch.OnStep(1, true);
    for (second += part; second >= 1; --second) watch.OnStep(2, true);
  }
  return watch.TakeWarning();
}

TEST(BarrierWatchTest, RanksThatStepByThemselvesAreNamedOnce) {
  BarrierWatch watch;
  EXPECT_EQ(Watch(watch, 5'000, 1), "") << "ranks of a barrier";
  EXPECT_EQ(Watch(watch, 5'000, 0.8), "") << "inferred steps that are sometimes split";
  watch = BarrierWatch();
  EXPECT_EQ(Watch(watch, BarrierWatch::kSteps * (BarrierWatch::kWindows - 1), 0.5), "");
  EXPECT_EQ(Watch(watch, BarrierWatch::kSteps * 2, 0.5),
            "one of its ranks took 128 steps while another that decoded took 64");
  EXPECT_EQ(Watch(watch, 5'000, 0.5), "");
}

TEST(BarrierWatchTest, CountsBeginAnewWithEachRankThatBeginsOrEnds) {
  BarrierWatch watch;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Watch(watch, 100, 0.5), "");
    watch.OnStep(2, false);
  }
  watch = BarrierWatch();
  EXPECT_EQ(Watch(watch, 300, 0.5), "");
  watch.OnIdle(2);
  EXPECT_EQ(Watch(watch, 5'000, 0), "") << "a rank without decodes is not missed";
}

}  // namespace
}  // namespace bfio::router
