// The power models.
#include "tools/sim/run/energy.h"

#include <vector>

#include "gtest/gtest.h"

namespace bfio::sim {
namespace {

TEST(PowerModelTest, IdleAndPeakAreTheEnds) {
  const PowerModel power;
  EXPECT_DOUBLE_EQ(power.Watts(0), 100);
  EXPECT_DOUBLE_EQ(power.Watts(1), 400);
  EXPECT_DOUBLE_EQ(power.Watts(2), 400);
  EXPECT_DOUBLE_EQ(power.Watts(-1), 100);
  EXPECT_NEAR(power.Watts(0.5), 100 + 300 * 0.61557, 0.01);
}

TEST(PowerModelTest, AGroupsEnergyIsTheSumOfItsWorkers) {
  const PowerModel power;
  EXPECT_DOUBLE_EQ(power.StepJoules(std::vector<int64_t>{10, 10}, 2), 1600);
  EXPECT_DOUBLE_EQ(power.StepJoules(std::vector<int64_t>{10, 0}, 1), 500);
  EXPECT_DOUBLE_EQ(power.StepJoules(std::vector<int64_t>{0, 0, 0}, 1), 300)
      << "an idle group draws idle power";
}

}  // namespace
}  // namespace bfio::sim
