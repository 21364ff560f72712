// The rules that bf_io is compared with, and the rules of engines and proxies, each checked against its
// description on decisions small enough to be made by hand.
#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// `workers`: the worker of each request, in order of arrival; -1: it waits.
void Expect(const char* policy, const char* claim, const PolicyCase& at_hand,
            const std::vector<int32_t>& workers) {
  EXPECT_THAT(at_hand.Decide(policy), ElementsAreArray(workers)) << policy << ": " << claim;
}

// Ranks with these {tokens, requests} and free slots.
PolicyCase Ranks(const std::vector<std::pair<int64_t, int32_t>>& ranks) {
  PolicyCase result;
  for (const auto& [tokens, active] : ranks) result.Worker(tokens, 9, kAmpleKv, active);
  return result;
}

TEST(Baselines, DecideAsByHand) {
  Expect("fcfs", "the oldest goes to the worker with most free slots",
         PolicyCase().Worker(0, 1).Worker(900, 3).WaitingAll({10, 20}), {1, 1});
  Expect("fcfs", "ties go to the lowest index",
         PolicyCase().Worker(9, 2).Worker(0, 2).WaitingAll({1, 1, 1, 1}), {0, 1, 0, 1});
  Expect("fcfs", "the youngest wait when slots run out",
         PolicyCase().Worker(0, 1).Worker(0, 1).WaitingAll({5, 5, 5}), {0, 1, -1});
  Expect("round_robin", "a full worker is skipped",
         PolicyCase().Worker(0, 1).Worker(0, 0).Worker(0, 2).WaitingAll({1, 1, 1}), {0, 2, 2});
  Expect("round_robin", "BF-IO paper: heavy requests at every i = 1 mod G all meet on one worker",
         PolicyCase().Worker(0, 3).Worker(0, 3).WaitingAll({99, 1, 99, 1, 99, 1}), {0, 1, 0, 1, 0, 1});
  Expect("least_requests", "requests count, and not slots or tokens",
         PolicyCase().Worker(10, 9, kAmpleKv, 5).Worker(900, 2, kAmpleKv, 3).WaitingAll({1, 1}), {1, 1});
  Expect("least_tokens", "in arrival order to the least loaded",
         PolicyCase().Worker(50, 4).Worker(40, 4).WaitingAll({20, 5, 30}), {1, 0, 0});
  Expect("least_tokens", "a full worker is skipped however light it is",
         PolicyCase().Worker(0, 0).Worker(500, 1).Waiting(7), {1});
  Expect("lpt", "the largest of the oldest first: loads of 9 and 3, in arrival order 10 and 2",
         PolicyCase().Worker(0, 2).Worker(0, 2).WaitingAll({1, 2, 9}), {1, 1, 0});
  Expect("lpt", "no older request is passed over",
         PolicyCase().Worker(0, 1).Worker(0, 1).WaitingAll({1, 2, 900}), {1, 0, -1});
  Expect("lpt", "where KV binds the oldest still enter: largest first would leave the 7 out",
         PolicyCase().Worker(0, 2, 10).WaitingAll({7, 8}), {0, -1});
  Expect("power_of_two", "of two workers the emptier one",
         PolicyCase()
             .Worker(0, 99, kAmpleKv, 50)
             .Worker(900, 99, kAmpleKv, 5)
             .WaitingAll({1, 1, 1, 1, 1, 1, 1, 1}),
         std::vector<int32_t>(8, 1));
  Expect("power_of_two", "one worker with free capacity is enough",
         PolicyCase().Worker(0, 0).Worker(0, 2).WaitingAll({1, 1}), {1, 1});
  // Counts 2 1 1: worker 1; 2 2 1, search from 1: worker 2; 2 2 2, search from 2: worker 2.
  Expect("vllm", "the fewest in flight, and the search rotates",
         PolicyCase()
             .Worker(0, 5, kAmpleKv, 2)
             .TotalKv(kAmpleKv)
             .Worker(900, 5, kAmpleKv, 1)
             .TotalKv(kAmpleKv)
             .Worker(0, 5, kAmpleKv, 1)
             .TotalKv(kAmpleKv)
             .WaitingAll({1, 1, 1}),
         {1, 2, 2});
  // Worker 0 has used 900 of 1,000 KV tokens, worker 1 none. For the first request no other waits anywhere:
  // 0 against 1, to worker 0. Then worker 0 has 1 waiting and 950 used: 1 + 6 * 1 * 0.45 = 3.7 against 1.
  // Counting requests alone, the third would go to worker 0 again.
  Expect("vllm", "one that waits counts six times its KV above one half",
         PolicyCase()
             .Worker(0, 9, 100, 0)
             .TotalKv(1000)
             .Worker(0, 9, 1000, 1)
             .TotalKv(1000)
             .Waiting(1, 0, 50)
             .Waiting(1, 0, 50)
             .Waiting(1, 0, 50),
         {0, 1, 1});
  Expect("trtllm", "longest first to the rank with fewest tokens: 9 to rank 1 (19), 5 to 0 (20), 2 to 1 (21)",
         Ranks({{15, 1}, {10, 1}}).WaitingAll({2, 5, 9}), {1, 0, 1});
  // Cap: max(ceil((2 + 3 + 2) / 2), 3) = 4. Rank 1 has few tokens but three requests; it takes one more only.
  Expect("trtllm", "a rank at the cap takes no more however light",
         Ranks({{900, 2}, {10, 3}}).WaitingAll({5, 9}), {0, 1});
  Expect("trtllm", "equal tokens go to the rank with fewer requests",
         Ranks({{10, 2}, {10, 1}}).WaitingAll({5, 5, 5}), {1, 0, 1});
  // The cap is 3, which rank 1 reaches with two more; but rank 0 has no slot, so rank 1 takes the third too.
  Expect("trtllm", "the cap leaves no slot empty",
         PolicyCase().Worker(10, 0, kAmpleKv, 2).Worker(10, 3, kAmpleKv, 1).WaitingAll({5, 5, 5}), {1, 1, 1});
  // The scenarios of TensorRT-LLM's own tests of the rule (test_balance_requests_across_ranks_* of
  // tests/unittest/_torch/executor/test_executor_request_queue.py).
  Expect("trtllm", "single_request", Ranks({{10, 1}, {20, 2}, {5, 0}, {15, 1}}).WaitingAll({5}), {2});
  Expect("trtllm", "multiple_requests", Ranks({{5, 0}, {15, 1}, {25, 2}, {10, 1}}).WaitingAll({3, 6, 2}),
         {3, 0, 0});
  Expect("trtllm", "capacity_limits", Ranks({{10, 1}, {10, 1}, {10, 1}, {10, 1}}).WaitingAll({1, 2, 3, 4}),
         {3, 2, 1, 0});
  Expect("trtllm", "heap_ordering", Ranks({{30, 3}, {10, 1}, {5, 0}, {20, 2}}).WaitingAll({3, 3, 3}),
         {2, 2, 1});
  Expect("trtllm", "token_count_sorting", Ranks({{5, 0}, {5, 0}, {5, 0}, {5, 0}}).WaitingAll({1, 5, 3}),
         {2, 0, 1});
}

TEST(RoundRobinTest, TheOrderContinuesFromOneDecisionToTheNext) {
  const auto policy = *MakePolicy("round_robin", {});
  const PolicyCase two = PolicyCase().Worker(0, 5).Worker(0, 5).Worker(0, 5).WaitingAll({1, 1});
  EXPECT_THAT(two.Decide(*policy), ElementsAre(0, 1));
  EXPECT_THAT(two.Decide(*policy), ElementsAre(2, 0));
}

TEST(LeastRequestsTest, TiesRotateAcrossDecisions) {
  const auto policy = *MakePolicy("least_requests", {});
  const PolicyCase one = PolicyCase().Worker(0, 5).Worker(0, 5).Worker(0, 5).Waiting(1);
  for (const int32_t worker : {0, 1, 2}) EXPECT_THAT(one.Decide(*policy), ElementsAre(worker));
}

TEST(PowerOfTwoTest, SeedDecidesTheDraws) {
  PolicyCase many;
  for (int g = 0; g < 64; ++g) many.Worker(0, 9);
  many.WaitingAll(std::vector<int64_t>(32, 1));
  const auto decide = [&](uint64_t seed) {
    PolicyOptions options = {.seed = seed};
    return many.Decide(**MakePolicy("power_of_two", options));
  };
  EXPECT_EQ(decide(7), decide(7));
  EXPECT_NE(decide(7), decide(8));
}

}  // namespace
}  // namespace bfio::core
