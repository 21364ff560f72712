#include "router/core/policy/level_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/core/policy/pool_scale.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LevelWorkersTest, AWorkerBelowHalfTheMedianDoesNotCount) {
  LevelWorkers level;
  const PolicyCase group =
      PolicyCase().Worker(1'000, 0).Worker(499, 5).Worker(500, 1).Worker(9'000, 0).Worker(1'000, 0);
  EXPECT_THAT(level.Find(group.View().workers), ElementsAre(0, 2, 3, 4));
}

TEST(LevelWorkersTest, DrainingOnesAreNeitherCountedNorPartOfTheMedian) {
  LevelWorkers level;
  // If draining workers counted, the median would be 9,000 and no other worker near it.
  PolicyCase group = PolicyCase().Worker(9'000, 0).Draining().Worker(9'000, 0).Draining();
  group.Worker(9'000, 0).Draining().Worker(1'000, 1).Worker(800, 1);
  EXPECT_THAT(level.Find(group.View().workers), ElementsAre(3, 4));
}

TEST(LevelWorkersTest, EmptyGroupIsLevelAndAllDrainingIsNot) {
  LevelWorkers level;
  const PolicyCase idle = PolicyCase().Worker(0, 1).Worker(0, 1);
  EXPECT_THAT(level.Find(idle.View().workers), ElementsAre(0, 1));
  const PolicyCase draining = PolicyCase().Worker(5, 0).Draining();
  EXPECT_THAT(level.Find(draining.View().workers), IsEmpty());
  EXPECT_THAT(level.Find({}), IsEmpty());
}

TEST(PoolScaleTest, MeanLengthAndMeanDistanceFromIt) {
  const PolicyCase pool = PolicyCase().Worker(0, 1).WaitingAll({100, 300, 500});
  const PoolScale scale = MeasurePool(pool.View().waiting);
  EXPECT_DOUBLE_EQ(scale.mean, 300);
  EXPECT_DOUBLE_EQ(scale.deviation, 400.0 / 3);
  EXPECT_EQ(MeasurePool({}).mean, 0);
  EXPECT_EQ(MeasurePool({}).deviation, 0);
}

}  // namespace
}  // namespace bfio::core
