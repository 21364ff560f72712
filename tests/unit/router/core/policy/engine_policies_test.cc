// What engines and proxies do: vllm, trtllm, throttled, power_of_d, index-filling FCFS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(FcfsFillTest, FirstWorkerIsFilledBeforeTheNextGetsAny) {
  EXPECT_THAT(PolicyCase().Worker(900, 2).Worker(0, 9).WaitingAll({1, 1, 1}).Decide("fcfs_fill"),
              ElementsAre(0, 0, 1));
}

TEST(ThrottledTest, FirstWorkerBelowThreeQuartersOfItsSlots) {
  // Of four slots each: two are taken on the first worker, so it takes one more, however loaded it is.
  EXPECT_THAT(PolicyCase()
                  .Worker(900, 2, kAmpleKv, /*active=*/2)
                  .Worker(0, 4)
                  .WaitingAll({1, 1, 1})
                  .Decide("throttled"),
              ElementsAre(0, 1, 1));
}

TEST(ThrottledTest, LeastLoadedWhenAllAreAtTheirThreshold) {
  EXPECT_THAT(PolicyCase()
                  .Worker(50, 1, kAmpleKv, /*active=*/3)
                  .Worker(40, 1, kAmpleKv, /*active=*/3)
                  .WaitingAll({5, 5})
                  .Decide("throttled"),
              ElementsAre(1, 0));
}

TEST(VllmTest, FewestInFlightWithTheSearchRotating) {
  const auto policy = *MakePolicy("vllm", {});
  const PolicyCase three = PolicyCase()
                               .Worker(0, 5, kAmpleKv, 2)
                               .TotalKv(kAmpleKv)
                               .Worker(900, 5, kAmpleKv, 1)
                               .TotalKv(kAmpleKv)
                               .Worker(0, 5, kAmpleKv, 1)
                               .TotalKv(kAmpleKv)
                               .WaitingAll({1, 1, 1});
  // Counts 2 1 1: worker 1; 2 2 1, the search begins at 1: worker 2; 2 2 2, it begins at 2: worker 2.
  EXPECT_THAT(three.Decide(*policy), ElementsAre(1, 2, 2));
}

TEST(VllmTest, WaitingCountsSixTimesItsKvAboveOneHalf) {
  // Worker 0 has used 900 of 1,000 KV tokens, worker 1 none. For the first request no other waits anywhere:
  // 0 against 1, to worker 0. Then worker 0 has 1 waiting and 950 used: 1 + 6 * 1 * 0.45 = 3.7 against 1.
  // Counting requests alone, the third would go to worker 0 again.
  const PolicyCase full = PolicyCase()
                              .Worker(0, 9, 100, 0)
                              .TotalKv(1000)
                              .Worker(0, 9, 1000, 1)
                              .TotalKv(1000)
                              .Waiting(1, 0, 50)
                              .Waiting(1, 0, 50)
                              .Waiting(1, 0, 50);
  EXPECT_THAT(full.Decide("vllm"), ElementsAre(0, 1, 1));
}

TEST(TrtllmTest, LongestFirstToTheRankWithFewestTokens) {
  // 9 to rank 1 (19), 5 to rank 0 (20), 2 to rank 1 (21).
  EXPECT_THAT(PolicyCase()
                  .Worker(15, 9, kAmpleKv, 1)
                  .Worker(10, 9, kAmpleKv, 1)
                  .WaitingAll({2, 5, 9})
                  .Decide("trtllm"),
              ElementsAre(1, 0, 1));
}

TEST(TrtllmTest, RankAtTheCapTakesNoMoreHoweverLight) {
  // Cap: max(ceil((2 + 3 + 2) / 2), 3) = 4. Rank 1 is light but has three; it takes one and leaves the heap.
  EXPECT_THAT(
      PolicyCase().Worker(900, 9, kAmpleKv, 2).Worker(10, 9, kAmpleKv, 3).WaitingAll({5, 9}).Decide("trtllm"),
      ElementsAre(0, 1));
}

TEST(TrtllmTest, EqualTokensGoToTheRankWithFewerRequests) {
  EXPECT_THAT(PolicyCase()
                  .Worker(10, 9, kAmpleKv, 2)
                  .Worker(10, 9, kAmpleKv, 1)
                  .WaitingAll({5, 5, 5})
                  .Decide("trtllm"),
              ElementsAre(1, 0, 1));
}

TEST(TrtllmTest, CapDoesNotLeaveASlotEmpty) {
  // Cap 3, which rank 1 has reached with two more; but rank 0 has no slot, so rank 1 takes the third too.
  EXPECT_THAT(PolicyCase()
                  .Worker(10, 0, kAmpleKv, 2)
                  .Worker(10, 3, kAmpleKv, 1)
                  .WaitingAll({5, 5, 5})
                  .Decide("trtllm"),
              ElementsAre(1, 1, 1));
}

// The scenarios of TensorRT-LLM's own tests of the rule (test_balance_requests_across_ranks_* of
// tests/unittest/_torch/executor/test_executor_request_queue.py): what runs on the ranks, what comes, who
// gets it.
TEST(TrtllmTest, ScenariosOfItsOwnTests) {
  struct Scenario {
    const char* name;
    std::vector<int32_t> active;
    std::vector<int64_t> tokens;
    std::vector<int64_t> prompts;
    std::vector<WorkerIndex> ranks;
  };
  const Scenario scenarios[] = {
      {"single_request", {1, 2, 0, 1}, {10, 20, 5, 15}, {5}, {2}},
      {"multiple_requests", {0, 1, 2, 1}, {5, 15, 25, 10}, {3, 6, 2}, {3, 0, 0}},
      {"capacity_limits", {1, 1, 1, 1}, {10, 10, 10, 10}, {1, 2, 3, 4}, {3, 2, 1, 0}},
      {"heap_ordering", {3, 1, 0, 2}, {30, 10, 5, 20}, {3, 3, 3}, {2, 2, 1}},
      {"token_count_sorting", {0, 0, 0, 0}, {5, 5, 5, 5}, {1, 5, 3}, {2, 0, 1}},
  };
  for (const Scenario& scenario : scenarios) {
    PolicyCase at_hand;
    for (size_t g = 0; g < scenario.active.size(); ++g)
      at_hand.Worker(scenario.tokens[g], 9, kAmpleKv, scenario.active[g]);
    for (const int64_t prompt : scenario.prompts) at_hand.Waiting(prompt);
    EXPECT_THAT(at_hand.Decide("trtllm"), ::testing::ElementsAreArray(scenario.ranks)) << scenario.name;
  }
}

TEST(PowerOfDTest, WithAsManyChoicesAsWorkersTheEmptiestIsAlwaysChosen) {
  PolicyOptions options;
  options.choices = 3;
  PolicyCase uneven = PolicyCase().Worker(0, 99, kAmpleKv, 50).Worker(900, 99, kAmpleKv, 5);
  uneven.Worker(0, 99, kAmpleKv, 60).WaitingAll({1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_THAT(uneven.Decide(**MakePolicy("power_of_d", options)), Each(1));
}

TEST(PowerOfDTest, OneChoiceIsRandom) {
  PolicyOptions options;
  options.choices = 1;
  PolicyCase uneven = PolicyCase().Worker(0, 99, kAmpleKv, 50).Worker(0, 99, kAmpleKv, 0);
  uneven.WaitingAll(std::vector<int64_t>(40, 1));
  const std::vector<int32_t> where = uneven.Decide(**MakePolicy("power_of_d", options));
  EXPECT_THAT(where, ::testing::Contains(0));
  EXPECT_THAT(where, ::testing::Contains(1));
}

TEST(PowerOfDTest, NoChoiceIsRefused) {
  PolicyOptions options;
  options.choices = 0;
  EXPECT_EQ(MakePolicy("power_of_d", options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio::core
