// min_min and max_min, on tables small enough to fill in by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

// Ready times 30 and 10. ECT of 20: 50, 30; of 5: 35, 15; of 40: 70, 50.
// Min-min: 5 to worker 1 (15); then 20: 50, 35, to worker 1 (35); then 40: 70, 75, to worker 0.
TEST(MinMinTest, TableByHand) {
  EXPECT_THAT(PolicyCase().Worker(30, 3).Worker(10, 3).WaitingAll({20, 5, 40}).Decide("min_min"),
              ElementsAre(1, 1, 0));
}

// Max-min: 40 to worker 1 (50); then 20: 50, 70, to worker 0 (50); then 5: 55, 55, to the lower index.
TEST(MaxMinTest, TableByHand) {
  EXPECT_THAT(PolicyCase().Worker(30, 3).Worker(10, 3).WaitingAll({20, 5, 40}).Decide("max_min"),
              ElementsAre(0, 0, 1));
}

TEST(MinMinTest, SmallestOfTheWholePoolEnter) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Worker(0, 1).WaitingAll({9, 8, 1, 2}).Decide("min_min"),
              ElementsAre(-1, -1, 0, 1));
}

TEST(MaxMinTest, LargestOfTheWholePoolEnter) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Worker(0, 1).WaitingAll({1, 2, 9, 8}).Decide("max_min"),
              ElementsAre(-1, -1, 0, 1));
}

TEST(MinMinTest, OlderOfTwoEqualsEnters) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).WaitingAll({5, 5}).Decide("min_min"), ElementsAre(0, -1));
}

TEST(MinMinTest, HigherClassGoesFirstHoweverLarge) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Waiting(90, 0, 0, 1).Waiting(1, 0, 0, 0).Decide("min_min"),
              ElementsAre(0, -1));
}

TEST(MaxMinTest, WhatFitsNowhereIsPassedOver) {
  EXPECT_THAT(PolicyCase().Worker(0, 2, 10).WaitingAll({5, 50, 4}).Decide("max_min"), ElementsAre(0, -1, 0));
}

}  // namespace
}  // namespace bfio::core
