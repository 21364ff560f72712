// The rules that bf_io is measured against, each by what its name promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(FcfsTest, OldestGoesToTheWorkerWithMostFreeSlots) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Worker(900, 3).WaitingAll({10, 20}).Decide("fcfs"),
              ElementsAre(1, 1));
}

TEST(FcfsTest, TiesGoToTheLowestIndex) {
  EXPECT_THAT(PolicyCase().Worker(9, 2).Worker(0, 2).WaitingAll({1, 1, 1, 1}).Decide("fcfs"),
              ElementsAre(0, 1, 0, 1));
}

TEST(FcfsTest, YoungestWaitWhenSlotsRunOut) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Worker(0, 1).WaitingAll({5, 5, 5}).Decide("fcfs"),
              ElementsAre(0, 1, -1));
}

TEST(RoundRobinTest, TheOrderContinuesFromOneDecisionToTheNext) {
  const auto policy = *MakePolicy("round_robin", {});
  const PolicyCase two = PolicyCase().Worker(0, 5).Worker(0, 5).Worker(0, 5).WaitingAll({1, 1});
  EXPECT_THAT(two.Decide(*policy), ElementsAre(0, 1));
  EXPECT_THAT(two.Decide(*policy), ElementsAre(2, 0));
}

TEST(RoundRobinTest, FullWorkerIsSkipped) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Worker(0, 0).Worker(0, 2).WaitingAll({1, 1, 1}).Decide("round_robin"),
              ElementsAre(0, 2, 2));
}

// BF-IO paper: with a heavy request at every i = 1 mod G, round robin gives all of them to one worker.
TEST(RoundRobinTest, PeriodicHeavyRequestsAllMeetOnOneWorker) {
  EXPECT_THAT(PolicyCase().Worker(0, 3).Worker(0, 3).WaitingAll({99, 1, 99, 1, 99, 1}).Decide("round_robin"),
              ElementsAre(0, 1, 0, 1, 0, 1));
}

TEST(LeastRequestsTest, CountsRequestsNotSlotsOrTokens) {
  const PolicyCase few_slots_few_requests = PolicyCase()
                                                .Worker(10, 9, kAmpleKv, /*active=*/5)
                                                .Worker(900, 2, kAmpleKv, /*active=*/3)
                                                .WaitingAll({1, 1});
  EXPECT_THAT(few_slots_few_requests.Decide("least_requests"), ElementsAre(1, 1));
}

TEST(LeastRequestsTest, TiesRotateAcrossDecisions) {
  const auto policy = *MakePolicy("least_requests", {});
  const PolicyCase one = PolicyCase().Worker(0, 5).Worker(0, 5).Worker(0, 5).Waiting(1);
  EXPECT_THAT(one.Decide(*policy), ElementsAre(0));
  EXPECT_THAT(one.Decide(*policy), ElementsAre(1));
  EXPECT_THAT(one.Decide(*policy), ElementsAre(2));
}

TEST(LeastTokensTest, ArrivalOrderToTheLeastLoaded) {
  EXPECT_THAT(PolicyCase().Worker(50, 4).Worker(40, 4).WaitingAll({20, 5, 30}).Decide("least_tokens"),
              ElementsAre(1, 0, 0));
}

TEST(LeastTokensTest, FullWorkerIsSkippedHoweverLightItIs) {
  EXPECT_THAT(PolicyCase().Worker(0, 0).Worker(500, 1).Waiting(7).Decide("least_tokens"), ElementsAre(1));
}

TEST(LptTest, LargestOfTheOldestIsPlacedFirst) {
  // In arrival order {1, 2, 9} would end at loads 10 and 2; largest first ends at 9 and 3.
  EXPECT_THAT(PolicyCase().Worker(0, 2).Worker(0, 2).WaitingAll({1, 2, 9}).Decide("lpt"),
              ElementsAre(1, 1, 0));
}

TEST(LptTest, NeverPassesOverAnOlderRequest) {
  EXPECT_THAT(PolicyCase().Worker(0, 1).Worker(0, 1).WaitingAll({1, 2, 900}).Decide("lpt"),
              ElementsAre(1, 0, -1));
}

TEST(LptTest, WhenKvBindsTheOldestStillEnter) {
  // Largest first would put the younger 8 in and leave the 7 out.
  EXPECT_THAT(PolicyCase().Worker(0, 2, 10).WaitingAll({7, 8}).Decide("lpt"), ElementsAre(0, -1));
}

TEST(PowerOfTwoTest, WithTwoWorkersTheEmptierOneIsAlwaysChosen) {
  const PolicyCase uneven = PolicyCase().Worker(0, 99, kAmpleKv, 50).Worker(900, 99, kAmpleKv, 5);
  EXPECT_THAT(PolicyCase(uneven).WaitingAll({1, 1, 1, 1, 1, 1, 1, 1}).Decide("power_of_two"), Each(1));
}

TEST(PowerOfTwoTest, SeedDecidesTheDraws) {
  PolicyCase many;
  for (int g = 0; g < 64; ++g) many.Worker(0, 9);
  many.WaitingAll(std::vector<int64_t>(32, 1));
  const auto decide = [&](uint64_t seed) {
    PolicyOptions options;
    options.seed = seed;
    return many.Decide(**MakePolicy("power_of_two", options));
  };
  EXPECT_EQ(decide(7), decide(7));
  EXPECT_NE(decide(7), decide(8));
}

TEST(PowerOfTwoTest, OneWorkerWithFreeCapacityIsEnough) {
  EXPECT_THAT(PolicyCase().Worker(0, 0).Worker(0, 2).WaitingAll({1, 1}).Decide("power_of_two"), Each(1));
}

}  // namespace
}  // namespace bfio::core
