#include "tests/testing/engine/rank_balancer.h"

#include <gtest/gtest.h>

namespace bfio::testing {
namespace {

absl::Time At(int64_t ms) {
  return absl::UnixEpoch() + absl::Milliseconds(ms);
}

TEST(RankBalancer, ABurstSpreadsOverTheRanks) {
  for (const int ranks : {1, 3}) {
    RankBalancer balancer(ranks, At(0));
    for (int i = 0; i < 7; ++i) EXPECT_EQ(balancer.Choose(At(1)), i % ranks);
  }
}

TEST(RankBalancer, RequestsInFlightCountAtOnce) {
  RankBalancer balancer(2, At(0));
  balancer.Pin(0);
  balancer.Pin(0);
  EXPECT_EQ(balancer.Choose(At(1)), 1);
  EXPECT_EQ(balancer.Choose(At(1)), 1);
  balancer.End(0);
  EXPECT_EQ(balancer.Choose(At(1)), 0);
}

TEST(RankBalancer, CountsArePublishedEvery100Ms) {
  RankBalancer balancer(2, At(0));
  balancer.Report(0, 1, {.running = 50}, At(10));
  EXPECT_EQ(balancer.Choose(At(99)), 0);
  EXPECT_EQ(balancer.Choose(At(101)), 1);
}

TEST(RankBalancer, AStepIsPublishedWhenAllHaveReportedIt) {
  RankBalancer balancer(2, At(0));
  balancer.Report(0, 1, {.running = 50}, At(60));
  balancer.Report(1, 1, {.running = 60}, At(80));
  // The counts of step 1 are published, although rank 0 reports step 2 first.
  balancer.Report(0, 2, {.running = 100}, At(99));
  EXPECT_EQ(balancer.Choose(At(100)), 0);
  EXPECT_EQ(balancer.Choose(At(200)), 1) << "step 2 is out";
}

TEST(RankBalancer, PublishingWaitsForTheRanksReports) {
  RankBalancer balancer(2, At(0));
  balancer.Report(0, 1, {.running = 50}, At(90));
  EXPECT_EQ(balancer.Choose(At(130)), 0) << "rank 1 may still tell";
  EXPECT_EQ(balancer.Choose(At(140)), 1);
}

TEST(RankBalancer, WaitingRequestsWeighMoreWhereMemoryIsShort) {
  RankBalancer balancer(2, At(0));
  balancer.Report(0, 1, {.waiting = 2, .running = 10, .kv = 1}, At(10));
  balancer.Report(1, 1, {.waiting = 0, .running = 17, .kv = 1}, At(10));
  // Above half of the memory, waiting requests weigh more: 12 + 2 * 6 * 0.5 = 18 against 17.
  EXPECT_EQ(balancer.Choose(At(200)), 1);
  balancer.Report(0, 2, {.waiting = 3, .running = 10, .kv = 0.5}, At(210));
  // Up to half of the memory only the number counts: 13 against 17.
  EXPECT_EQ(balancer.Choose(At(500)), 0);
}

TEST(RankBalancer, WithoutNewsTheCountsAreRepeatedEvery5S) {
  RankBalancer balancer(2, At(0));
  balancer.Report(0, 1, {.running = 1}, At(10));
  EXPECT_EQ(balancer.Choose(At(200)), 1);
  balancer.End(1);
  // The request counts as waiting there until the next publication, which in this test is hours away.
  EXPECT_EQ(balancer.Choose(At(300)), 1) << "alike: the search begins at rank 1";
  balancer.End(1);
  EXPECT_EQ(balancer.Choose(At(3'600'000)), 1);
}

}  // namespace
}  // namespace bfio::testing
