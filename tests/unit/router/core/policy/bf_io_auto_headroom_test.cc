// Placement under bf_io_auto while there are slots for all.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/bf_io_auto/headroom.h"
#include "tests/testing/mini_group.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

class HeadroomTest : public ::testing::Test {
 protected:
  // Requests that the policy has seen and that no longer wait.
  void See(int64_t prefill, int times = 1) {
    for (int i = 0; i < times; ++i) Show({prefill});
  }
  // Requests that wait together and are all new.
  void Show(const std::vector<int64_t>& prefills) {
    std::vector<WaitingView> waiting;
    for (int64_t prefill : prefills) {
      waiting.emplace_back();
      waiting.back().id = ++last_id_;
      waiting.back().prefill_tokens = prefill;
    }
    Snapshot snapshot = {.waiting = waiting};
    headroom_.Observe(snapshot);
  }
  // The worker of each waiting request, without counting these requests as seen.
  std::vector<int32_t> Place(const PolicyCase& group, double growth = 0) {
    const Snapshot snapshot = group.View();
    FreeCapacity free;
    free.Reset(snapshot);
    Decision decision;
    EXPECT_TRUE(headroom_.Place(snapshot, growth, {}, free, decision));
    std::vector<int32_t> result(snapshot.waiting.size(), -1);
    for (const Assignment& assignment : decision.assignments)
      result[assignment.waiting_index] = assignment.worker;
    return result;
  }

  // The second worker's load leaves room below the largest, the third's far more.
  const PolicyCase group_ = PolicyCase().Worker(10'000, 5).Worker(9'000, 5).Worker(2'000, 5);
  Headroom headroom_;
  RequestId last_id_ = 0;
};

TEST_F(HeadroomTest, LowestWorkerIsKeptForTheNextLargeRequest) {
  See(8'000, 2);
  See(300, 20);
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(500)), ElementsAre(1));
}

TEST_F(HeadroomTest, WithoutLargeRequestsTheLowestTakesAll) {
  See(300, 20);
  EXPECT_THAT(Place(PolicyCase(group_).WaitingAll({500, 400})), ElementsAre(2, 2));
}

TEST_F(HeadroomTest, StepIsNotMadeLongerNowForWhatMayComeLater) {
  See(8'000, 2);
  See(300, 20);
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(1'500)), ElementsAre(2));
}

TEST_F(HeadroomTest, LargeRequestItselfGoesToTheLowest) {
  See(8'000, 2);
  See(300, 20);
  EXPECT_THAT(Place(PolicyCase(group_).WaitingAll({500, 8'000})), ElementsAre(1, 2));
}

TEST_F(HeadroomTest, HeadroomIsMeasuredInTime) {
  See(8'000, 2);
  See(300, 20);
  // The first worker has the shortest time but most tokens; a token on the second counts three times.
  const PolicyCase unequal =
      PolicyCase().Worker(4'000, 5).TimePerToken(0.5).Worker(3'000, 5).TimePerToken(3).Worker(10'000, 5);
  EXPECT_THAT(Place(PolicyCase(unequal).Waiting(300)), ElementsAre(1));
  EXPECT_THAT(Place(PolicyCase(unequal).Waiting(500)), ElementsAre(0)) << "1,500 on the second is too much";
}

TEST_F(HeadroomTest, NextLargeRequestCountsItsUncomputedTokens) {
  See(1'000, 2);
  See(30, 20);
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(50)), ElementsAre(2)) << "1,000 fit below the largest";
  EXPECT_THAT(Place(PolicyCase(group_).PrefillWeight(16).Waiting(50)), ElementsAre(1)) << "17,000 do not";
}

TEST_F(HeadroomTest, EachRequestIsSeenOnceHoweverLongItWaits) {
  See(8'000);
  std::vector<WaitingView> waits(1);
  waits[0].id = ++last_id_;
  waits[0].prefill_tokens = 300;
  Snapshot snapshot = {.waiting = waits};
  for (int i = 0; i < 10'000; ++i) headroom_.Observe(snapshot);
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(500)), ElementsAre(1)) << "one of two is large";
}

// More requests than are inserted one by one, and more than are remembered.
TEST_F(HeadroomTest, ManyNewRequestsAreLearntAsOneAfterTheOther) {
  Rng rng(11);
  std::vector<int64_t> seen;
  for (int i = 0; i < 6'000; ++i) seen.push_back(1 + static_cast<int64_t>(rng.Below(500)));
  const auto ask = [&] {
    std::vector<int32_t> workers;
    for (int64_t prompt = 50; prompt <= 3'000; prompt += 50) {
      workers.push_back(Place(PolicyCase(group_).Waiting(prompt)).at(0));
    }
    return workers;
  };
  See(8'000, 100);
  Show({seen.begin(), seen.begin() + 1'500});
  const std::vector<int32_t> some = ask();
  Show({seen.begin() + 1'500, seen.end()});
  const std::vector<int32_t> all = ask();
  EXPECT_NE(some, all) << "the large ones are forgotten";

  headroom_ = {};
  See(8'000, 100);
  for (size_t i = 0; i < 1'500; ++i) See(seen[i]);
  EXPECT_EQ(ask(), some);
  for (size_t i = 1'500; i < seen.size(); ++i) See(seen[i]);
  EXPECT_EQ(ask(), all);
}

TEST_F(HeadroomTest, LargeRequestsOfLongAgoAreForgotten) {
  See(8'000, 100);
  See(300, 3'999);
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(500)), ElementsAre(1));
  See(300);
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(500)), ElementsAre(2));
}

TEST_F(HeadroomTest, ReportsARequestThatFitsNowhere) {
  const PolicyCase tight = PolicyCase().Worker(10'000, 1, 100).Worker(2'000, 1, 100).Waiting(500, 0, 101);
  const Snapshot snapshot = tight.View();
  FreeCapacity free;
  free.Reset(snapshot);
  Decision decision;
  EXPECT_FALSE(headroom_.Place(snapshot, /*growth=*/0, {}, free, decision));
}

// Placing the largest first would put the first request where only the second fits.
TEST_F(HeadroomTest, WhereKvBindsAllThatFitAreStillPlaced) {
  const PolicyCase tight = PolicyCase()
                               .Worker(2'000, 2, 100)
                               .Worker(9'000, 2, 60)
                               .Worker(10'000, 1, 10)
                               .Waiting(900, 0, /*kv=*/60)
                               .Waiting(500, 0, /*kv=*/100)
                               .Waiting(100, 0, /*kv=*/10);
  const std::vector<Assignment> plan = tight.Call(**MakePolicy("bf_io_auto", {})).assignments;
  CheckContract(tight.View(), plan);
}

TEST_F(HeadroomTest, AWorkerOfManyYoungResidentsIsNotTheLowest) {
  See(300, 20);
  const PolicyCase group = PolicyCase()
                               .Worker(5'000, 5, kAmpleKv, /*active=*/20)
                               .Worker(6'000, 5, kAmpleKv, /*active=*/5)
                               .Waiting(300);
  EXPECT_THAT(Place(group), ElementsAre(0));
  EXPECT_THAT(Place(group, /*growth=*/500), ElementsAre(1)) << "15,000 and 8,500 in the end";
}

TEST_F(HeadroomTest, PlacedRequestsGrowToo) {
  See(8'000, 2);
  See(300, 20);
  // Now the 500 tokens fit below the largest load on the second worker; with 600 of growth they do not.
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(500)), ElementsAre(1));
  EXPECT_THAT(Place(PolicyCase(group_).Waiting(500), /*growth=*/600), ElementsAre(2));
}

TEST_F(HeadroomTest, ExpectedGrowthIsHalfTheRemainingTokensByTheirShare) {
  const PolicyCase none = PolicyCase().Worker(0, 5);
  EXPECT_EQ(headroom_.ExpectedGrowth(none.View(), 0), 0) << "nothing was seen";
  See(100, 10);
  EXPECT_EQ(headroom_.ExpectedGrowth(none.View(), 600), 0) << "no request is there";
  // Residents of 1,100 tokens on average have generated 1,000 of them.
  const PolicyCase group =
      PolicyCase().Worker(9'000, 5, kAmpleKv, /*active=*/9).Worker(2'000, 5, kAmpleKv, /*active=*/1);
  EXPECT_DOUBLE_EQ(headroom_.ExpectedGrowth(group.View(), 0), 0.5 * 1'000 * 1'000 / 1'100);
  EXPECT_DOUBLE_EQ(headroom_.ExpectedGrowth(group.View(), 600), 0.5 * 500 * 500 / 600)
      << "the mean output is 500";
  EXPECT_DOUBLE_EQ(headroom_.ExpectedGrowth(group.View(), 9'000), 0.5 * 1'000 * 1'000 / 1'100);
  EXPECT_EQ(headroom_.ExpectedGrowth(group.View(), 90), 0)
      << "completed requests were shorter than prompts are";
}

// The mean of the largest load of 16 workers of 40 slots.
struct Traffic {
  double arrivals;
  std::function<Job(Rng&)> job;
};
double MeanLargest(const char* name, uint64_t seed, int steps, const Traffic& traffic) {
  MiniGroup group(std::vector<Machine>(16, Machine{40}));
  const auto policy = *MakePolicy(name, {});
  Rng rng(seed);
  double sum = 0;
  for (int step = 0; step < 2 * steps; ++step) {
    for (double arrivals = traffic.arrivals; arrivals > rng.Uniform(); --arrivals)
      group.Enqueue(traffic.job(rng));
    for (const Admission& admission : group.Step(*policy)) EXPECT_EQ(admission.wait, 0);
    int64_t largest = 0;
    for (int g = 0; g < 16; ++g) largest = std::max(largest, group.Load(g));
    if (step >= steps) sum += static_cast<double>(largest) / steps;
  }
  return sum;
}

TEST(BfIoAutoTest, LargestLoadsAreLowerThanUnderLptWhereSomeRequestsAreLarge) {
  // A tenth of the slots are taken, and one request in thirty is large.
  const Traffic traffic{1.3, [](Rng& rng) {
                          Job job;
                          job.prefill =
                              1 + static_cast<int64_t>((rng.Below(30) == 0 ? 9'000 : 600) * rng.Uniform());
                          job.output = 1 + static_cast<int64_t>(50 * rng.Exponential());
                          return job;
                        }};
  double ours = 0, lpt = 0;
  for (uint64_t seed : {1, 2, 3}) {
    ours += MeanLargest("bf_io_auto", seed, 3'000, traffic);
    lpt += MeanLargest("lpt", seed, 3'000, traffic);
  }
  EXPECT_LT(ours, 0.99 * lpt);
}

TEST(BfIoAutoTest, LargestLoadsAreLowerThanUnderLptWhereRequestsGrow) {
  // Half of the slots are taken; most tokens of requests are generated, few are prompt tokens.
  const Traffic traffic{0.4, [](Rng& rng) {
                          return Job{.prefill = 20 + static_cast<int64_t>(100 * rng.Uniform()),
                                     .output = 300 + static_cast<int64_t>(1'000 * rng.Uniform())};
                        }};
  double ours = 0, lpt = 0;
  for (uint64_t seed : {1, 2, 3}) {
    ours += MeanLargest("bf_io_auto", seed, 5'000, traffic);
    lpt += MeanLargest("lpt", seed, 5'000, traffic);
  }
  EXPECT_LT(ours, 0.93 * lpt);
}

}  // namespace
}  // namespace bfio::core
