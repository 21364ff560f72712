// Decisions small enough to be made by hand, each checked against the description of its rule. The contract
// that every plan keeps (no slot left empty, no class passed over) is that of
// tests/property/policy_property_test.cc.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/balance_route/balance_route.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// `policies`: separated by spaces. `workers`: of each request, in order of arrival; -1: it waits.
void Expect(const char* policies, const char* claim, const PolicyCase& at_hand,
            const std::vector<int32_t>& workers) {
  for (const absl::string_view policy : absl::StrSplit(policies, ' '))
    EXPECT_EQ(at_hand.Decide(std::string(policy)), workers) << policy << ": " << claim;
}

// Ranks with these {tokens, requests} and free slots.
PolicyCase Ranks(const std::vector<std::pair<int64_t, int32_t>>& ranks,
                 const std::vector<int64_t>& prefills) {
  PolicyCase result;
  for (const auto& [tokens, active] : ranks) result.Worker(tokens, 9, kAmpleKv, active);
  return result.WaitingAll(prefills);
}

TEST(Decisions, OfBaselines) {
  PolicyCase of_two = PolicyCase().Worker(0, 99, kAmpleKv, 50).Worker(900, 99, kAmpleKv, 5);
  of_two.WaitingAll(std::vector<int64_t>(8, 1));
  PolicyCase rotates;
  for (const int32_t active : {2, 1, 1}) rotates.Worker(0, 5, kAmpleKv, active).TotalKv(kAmpleKv);
  rotates.WaitingAll({1, 1, 1});
  PolicyCase half_full = PolicyCase().Worker(0, 9, 100, 0).TotalKv(1000).Worker(0, 9, 1000, 1).TotalKv(1000);
  half_full.Waiting(1, 0, 50).Waiting(1, 0, 50).Waiting(1, 0, 50);
  Expect("fcfs", "the oldest goes to the worker with most free slots", CaseOf({{0, 1}, {900, 3}}, {10, 20}),
         {1, 1});
  Expect("fcfs", "ties go to the lowest index", CaseOf({{9, 2}, {0, 2}}, {1, 1, 1, 1}), {0, 1, 0, 1});
  Expect("fcfs", "the youngest wait when slots run out", CaseOf({{0, 1}, {0, 1}}, {5, 5, 5}), {0, 1, -1});
  Expect("round_robin", "a full worker is skipped", CaseOf({{0, 1}, {0, 0}, {0, 2}}, {1, 1, 1}), {0, 2, 2});
  Expect("round_robin", "BF-IO paper: heavy requests at every i = 1 mod G all meet on one worker",
         CaseOf({{0, 3}, {0, 3}}, {99, 1, 99, 1, 99, 1}), {0, 1, 0, 1, 0, 1});
  Expect("least_requests", "requests count, and not slots or tokens",
         PolicyCase().Worker(10, 9, kAmpleKv, 5).Worker(900, 2, kAmpleKv, 3).WaitingAll({1, 1}), {1, 1});
  Expect("least_tokens", "in arrival order to the least loaded", CaseOf({{50, 4}, {40, 4}}, {20, 5, 30}),
         {1, 0, 0});
  Expect("least_tokens", "a full worker is skipped however light it is", CaseOf({{0, 0}, {500, 1}}, {7}),
         {1});
  Expect("lpt", "the largest of the oldest first: loads of 9 and 3, in arrival order 10 and 2",
         CaseOf({{0, 2}, {0, 2}}, {1, 2, 9}), {1, 1, 0});
  Expect("lpt", "no older request is passed over", CaseOf({{0, 1}, {0, 1}}, {1, 2, 900}), {1, 0, -1});
  Expect("lpt", "where KV binds the oldest still enter: largest first would leave the 7 out",
         PolicyCase().Worker(0, 2, 10).WaitingAll({7, 8}), {0, -1});
  Expect("power_of_two", "of two workers the emptier one", of_two, std::vector<int32_t>(8, 1));
  Expect("power_of_two", "one worker with free capacity is enough", CaseOf({{0, 0}, {0, 2}}, {1, 1}), {1, 1});
  // Counts 2 1 1: worker 1; 2 2 1, search from 1: worker 2; 2 2 2, search from 2: worker 2.
  Expect("vllm", "the fewest in flight, and the search rotates", rotates, {1, 2, 2});
  // Worker 0 has used 900 of 1,000 KV tokens, worker 1 none. For the first request no other waits
  // anywhere: 0 against 1, to worker 0. Then worker 0 has 1 waiting and 950 used: 1 + 6 * 1 * 0.45 = 3.7
  // against 1. Counting requests alone, the third would go to worker 0 again.
  Expect("vllm", "one that waits counts six times its KV above one half", half_full, {0, 1, 1});
  Expect("trtllm", "longest first to the rank with fewest tokens: 9 to rank 1 (19), 5 to 0 (20), 2 to 1 (21)",
         Ranks({{15, 1}, {10, 1}}, {2, 5, 9}), {1, 0, 1});
  // Cap: max(ceil((2 + 3 + 2) / 2), 3) = 4. Rank 1 has few tokens but three requests; it takes one more
  // only.
  Expect("trtllm", "a rank at the cap takes no more however light", Ranks({{900, 2}, {10, 3}}, {5, 9}),
         {0, 1});
  Expect("trtllm", "equal tokens go to the rank with fewer requests", Ranks({{10, 2}, {10, 1}}, {5, 5, 5}),
         {1, 0, 1});
  // The cap is 3, which rank 1 reaches with two more; but rank 0 has no slot, so rank 1 takes the third
  // too.
  Expect("trtllm", "the cap leaves no slot empty",
         PolicyCase().Worker(10, 0, kAmpleKv, 2).Worker(10, 3, kAmpleKv, 1).WaitingAll({5, 5, 5}), {1, 1, 1});
  // The scenarios of TensorRT-LLM's own tests of the rule (test_balance_requests_across_ranks_* of
  // tests/unittest/_torch/executor/test_executor_request_queue.py).
  Expect("trtllm", "single_request", Ranks({{10, 1}, {20, 2}, {5, 0}, {15, 1}}, {5}), {2});
  Expect("trtllm", "multiple_requests", Ranks({{5, 0}, {15, 1}, {25, 2}, {10, 1}}, {3, 6, 2}), {3, 0, 0});
  Expect("trtllm", "capacity_limits", Ranks({{10, 1}, {10, 1}, {10, 1}, {10, 1}}, {1, 2, 3, 4}),
         {3, 2, 1, 0});
  Expect("trtllm", "heap_ordering", Ranks({{30, 3}, {10, 1}, {5, 0}, {20, 2}}, {3, 3, 3}), {2, 2, 1});
  Expect("trtllm", "token_count_sorting", Ranks({{5, 0}, {5, 0}, {5, 0}, {5, 0}}, {1, 5, 3}), {2, 0, 1});
}

TEST(Decisions, OfBalanceRoute) {
  const PolicyCase two = CaseOf({{500, 0}, {400, 1}}, {100, 10});
  Expect("br0", "worker 1 is 100 below worker 0; of all pairs 70 + 30 fits best",
         CaseOf({{500, 0}, {400, 2}}, {90, 70, 60, 30}), {-1, 1, -1, 1});
  Expect("br0", "when nothing fits the margin the least overflows",
         CaseOf({{500, 1}, {500, 0}}, {90, 70, 80}), {-1, 0, -1});
  // Eight free slots and a margin of 50. A request of 40 scores 40, one of 60 only 60 - 2 * 10 = 40; the
  // older one is first. Then worker 1 has 490 and takes the other one too, because a slot is never left
  // empty.
  Expect("br0", "with many slots the emptiest takes what fits it best",
         CaseOf({{500, 3}, {450, 5}}, {40, 60}), {1, 1});
  // Worker 1 is 100 below now; two steps later it is the most loaded one and raises the maximum.
  Expect("br0", "only the present counts", two, {1, -1});
  Expect("br_h:square:2", "lookahead counts the margin that is about to vanish",
         PolicyCase(two).Ahead(2, {500, 400, 300, 400, 300, 400}, {1, 1, 1}), {-1, 1});
}

// Four workers with a load of 1,000 per slot; the least loaded one is reserved for the oversized request.
PolicyCase OversizedAmongSmall(int64_t prepared_load) {
  PolicyCase result;
  for (const int64_t load : {int64_t{50'000}, int64_t{50'000}, int64_t{50'000}, prepared_load})
    result.Worker(load, load == prepared_load ? 1 : 0, kAmpleKv, 50);
  return result.Waiting(8'000, /*age=*/13).WaitingAll({900, 1'400, 100, 1'000, 700, 1'100});
}

// So many workers with this load drain; the gap is that of the second worker below the first.
PolicyCase Draining(int64_t load, int workers, const std::vector<int64_t>& prefills = {100, 3'000, 6'000}) {
  PolicyCase result = CaseOf({{60'000, 0}, {57'000, 1}});
  for (int i = 0; i < workers; ++i) result.Worker(load, 0).Draining();
  return result.WaitingAll(prefills);
}

TEST(Decisions, OfBfIo) {
  // The first request is far too large for the gap that the second closes exactly.
  const auto misfit = [](int64_t age, int64_t age_of_other) {
    return CaseOf({{100'000, 0}, {99'000, 1}}).Waiting(30'000, age).Waiting(1'000, age_of_other);
  };
  Expect("bf_io bf_io:paper bf_io_auto", "the request that closes the gap",
         CaseOf({{10'000, 0}, {4'000, 1}}, {300, 9'000, 6'000, 2'000}), {-1, -1, 1, -1});
  Expect("bf_io bf_io:paper", "two gaps get their own requests each",
         CaseOf({{9'000, 0}, {8'000, 1}, {4'000, 1}}, {2'000, 5'000, 1'000, 9'000}), {-1, 2, 1, -1});
  Expect("bf_io", "a misfit waits", misfit(0, 0), {-1, 1});
  Expect("bf_io", "age outweighs any misfit in the end", misfit(1'000, 0), {1, -1});
  Expect("bf_io", "a backlog that delays all alike makes none overdue", misfit(900'000, 900'000), {-1, 1});
  Expect("bf_io", "the worker reserved for an oversized request gets the smallest",
         OversizedAmongSmall(49'000), {-1, -1, -1, 3, -1, -1, -1});
  Expect("bf_io", "the oversized request enters once its worker is low enough", OversizedAmongSmall(42'000),
         {3, -1, -1, -1, -1, -1, -1});
  for (const int64_t load : {2'000, 60'000, 900'000})
    Expect("bf_io bf_io_auto", "a worker drains, nearly empty or full", Draining(load, 1), {-1, 1, -1});
  Expect("bf_io bf_io_auto", "most of the group drains", Draining(90'000, 4), {-1, 1, -1});
  for (const int64_t load : {35'000, 90'000})
    Expect("bf_io", "two drain", Draining(load, 2, {100, 3'000, 6'000, 20'000}), {-1, 1, -1, -1});
  Expect("bf_io", "a full worker that is nearly empty does not count for the level either",
         CaseOf({{60'000, 0}, {57'000, 1}, {2'000, 0}}, {100, 3'000, 6'000}), {-1, 1, -1});
  // A snapshot that cannot come from the scheduler: all drain, yet one has a slot.
  Expect("bf_io bf_io_auto", "a group in which all drain has no level and still a plan",
         PolicyCase().Worker(10, 1).Draining().Worker(20, 0).Draining().WaitingAll({5}), {0});
  Expect("bf_io_auto", "a worker that has just joined takes the largest, and does not pull the others down",
         CaseOf({{60'000, 0}, {57'000, 1}, {0, 1}}, {100, 3'000, 200, 9'000, 300}), {-1, 1, -1, 2, -1});
  // As times 20,000, 16,000 and 20,000: the gap is on the second worker, although it holds the most
  // tokens.
  Expect("bf_io_auto", "unequal workers are filled by time, not by tokens",
         CaseOf({{10'000, 0}})
             .TimePerToken(2)
             .Worker(16'000, 1)
             .Worker(10'000, 1)
             .TimePerToken(2)
             .WaitingAll({4'000, 100}),
         {1, 2});
  Expect("bf_io_auto", "a worker with a long step of its own gets less",
         CaseOf({{20'000, 0}, {15'000, 1}}).TimeOffset(4'000).WaitingAll({5'000, 1'000}), {-1, 1});
}

TEST(Decisions, OfBfIoWithAHorizon) {
  // Both gaps are equal now; the third worker loses most of its load in the next step.
  const PolicyCase empties_soon = CaseOf({{10'000, 1}, {9'999, 0}, {10'000, 1}}, {3'000})
                                      .Ahead(1, {10'000, 10'010, 9'999, 10'009, 10'000, 4'000}, {1, 1});
  // Beyond the horizon of 1 the second worker is far above the first.
  const PolicyCase further =
      CaseOf({{9'000, 1}, {10'000, 1}}, {1'000})
          .Ahead(3, {9'000, 10'000, 9'000, 90'000, 10'000, 8'900, 500'000, 90'000}, {1, 1, 1, 1});
  // The first worker's load is lower now, the second worker's later.
  const PolicyCase tie =
      CaseOf({{9'000, 1}, {10'000, 1}}, {1'000}).Ahead(1, {9'000, 10'000, 10'000, 8'900}, {1, 1});
  // Two requests that differ only in how long they will stay.
  const auto stays = [](double ahead) {
    return CaseOf({{10'000, 0}, {9'000, 1}})
        .Waiting(1'000)
        .Curve(0)
        .Waiting(1'000)
        .Curve(1)
        .Ahead(1, {10'000, 10'000, 9'000, ahead}, {1, 0, 1, 1});
  };
  Expect("bf_io:paper bf_io:square", "today leaves it open", empties_soon, {0});
  Expect("bf_io:paper:1 bf_io:square:1", "the step ahead decides", empties_soon, {2});
  Expect("bf_io:paper:1 bf_io:square:1", "an outlook that reaches further is read by its own rows", further,
         {1});
  Expect("bf_io:paper:3 bf_io:square:3", "and by a policy that reaches as far", further, {0});
  Expect("bf_io:paper:1 bf_io:square:1", "a step ahead counts as much as the present", tie, {1});
  Expect("bf_io:paper:1:0.5 bf_io:square:1:0.5", "or less", tie, {0});
  Expect("bf_io:square:1", "one that stays goes where load stays as it is", stays(9'000), {-1, 1});
  Expect("bf_io:square:1", "a short-lived one where load will be high anyway", stays(13'000), {1, -1});
}

TEST(Decisions, RotateAcrossCalls) {
  const auto rotates = PolicyNamed("round_robin"), ties = PolicyNamed("least_requests");
  const PolicyCase group = CaseOf({{0, 5}, {0, 5}, {0, 5}}, {1});
  EXPECT_THAT(PolicyCase(group).Waiting(1).Decide(*rotates), ElementsAre(0, 1));
  EXPECT_THAT(PolicyCase(group).Waiting(1).Decide(*rotates), ElementsAre(2, 0));
  for (const int32_t worker : {0, 1, 2}) EXPECT_THAT(group.Decide(*ties), ElementsAre(worker));
}

TEST(Decisions, TheSeedDecidesTheDrawsOfPowerOfTwo) {
  PolicyCase many;
  for (int g = 0; g < 64; ++g) many.Worker(0, 9);
  many.WaitingAll(std::vector<int64_t>(32, 1));
  const auto decide = [&](uint64_t seed) {
    return many.Decide(*PolicyNamed("power_of_two", {.seed = seed}));
  };
  EXPECT_EQ(decide(7), decide(7));
  EXPECT_NE(decide(7), decide(8));
}

TEST(RegistryTest, EveryListedPolicyIsMadeUnderItsOwnNameAndOthersAreRefused) {
  for (const PolicyInfo& info : RegisteredPolicies())
    EXPECT_EQ((*MakePolicy(info.name, {}))->name(), info.name);
  const absl::Status status = MakePolicy("fastest", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'fastest' is unknown"), HasSubstr("least_tokens")));
}

TEST(RegistryTest, OptionsOutOfRangeAreRefusedByName) {
  const auto refused = [](const PolicyOptions& options, const char* text) {
    const absl::Status status = MakePolicy("bf_io", options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  EXPECT_EQ((*MakePolicy("bf_io", {.horizon = 500}))->horizon(), 500);
  EXPECT_EQ((*MakePolicy("br_h", {.horizon = 20}))->horizon(), 20);
  EXPECT_EQ((*MakePolicy("br_h", {}))->horizon(), 80) << "the paper's";
  EXPECT_EQ((*MakePolicy("br0", {.horizon = 20}))->horizon(), 0) << "it asks the scheduler for no outlook";
  EXPECT_EQ(MakePolicy("br_h", {.horizon = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  for (const int32_t horizon : {501, -1}) refused({.horizon = horizon}, "must lie between 0 and 500");
  for (const double discount : {0.0, -0.5, 1.01, std::nan("")}) refused({.discount = discount}, "discount");
  refused({.objective = "cube"}, "objective 'cube' is unknown");
}

// --- balance route ---

// The score of br0 and br_h, and the choice of subsets.

// With beta = G the score is the reduction of G max L - sum L by the request.
TEST(MarginScoreTest, IsTheChangeOfTheImbalanceExactly) {
  Rng rng(5);
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<double> loads;
    for (int g = 0; g < 4; ++g) loads.push_back(static_cast<double>(rng.Below(100)));
    const auto imbalance = [&] {
      return 4 * *std::max_element(loads.begin(), loads.end()) -
             std::accumulate(loads.begin(), loads.end(), 0.0);
    };
    const double before = imbalance();
    MarginScore score(4, 1);
    score.Reset({loads[1]}, {*std::max_element(loads.begin(), loads.end())});
    const int64_t tokens = static_cast<int64_t>(rng.Below(150));
    loads[1] += static_cast<double>(tokens);
    EXPECT_DOUBLE_EQ(score(tokens), before - imbalance());
  }
}

TEST(MarginScoreTest, StepsAheadCountLess) {
  MarginScore score(43, 0.5);
  score.Reset({70, 95}, {100, 100});
  EXPECT_DOUBLE_EQ(score(5), 5 * 1.5);
  EXPECT_DOUBLE_EQ(score(10), 10 * 1.5 - 43 * 0.5 * 5);
  EXPECT_DOUBLE_EQ(score(40), 40 * 1.5 - 43 * (10 + 0.5 * 35));
  EXPECT_EQ(score.safe(), 5);
}

// Reference: tries every k-subset.
int64_t BestSum(const std::vector<int64_t>& sizes, int k, int64_t limit) {
  int64_t below = -1, least = -1;
  for (uint32_t set = 0; set < 1u << sizes.size(); ++set) {
    if (__builtin_popcount(set) != k) continue;
    int64_t sum = 0;
    for (size_t i = 0; i < sizes.size(); ++i) sum += (set >> i & 1) ? sizes[i] : 0;
    if (sum <= limit) below = std::max(below, sum);
    if (least < 0 || sum < least) least = sum;
  }
  return below >= 0 ? below : least;
}

TEST(SubsetSumTest, AsGoodAsTryingAllSubsets) {
  Rng rng(6);
  SubsetSum subset_sum;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int64_t> sizes(1 + rng.Below(10));
    for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(rng.Below(300));
    const int k = 1 + static_cast<int>(rng.Below(sizes.size()));
    const int64_t limit = static_cast<int64_t>(rng.Below(900));
    const std::vector<int32_t> chosen = subset_sum.Best(sizes, k, limit);
    int64_t sum = 0;
    for (int32_t i : chosen) sum += sizes[i];
    ASSERT_EQ(chosen.size(), static_cast<size_t>(k)) << "in trial " << trial;
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()) &&
                std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
    ASSERT_EQ(sum, BestSum(sizes, k, limit)) << "in trial " << trial;
  }
}

TEST(SubsetSumTest, LargeSizesTakeNoMoreTimeAndMemory) {
  SubsetSum subset_sum;
  std::vector<int64_t> sizes = {1'000'000'000, 2'000'000'000, 500'000'000, 1};
  EXPECT_THAT(subset_sum.Best(sizes, 1, 1'999'999'999), ElementsAre(0));
  EXPECT_THAT(subset_sum.Best(sizes, 2, 1'600'000'000), ElementsAre(0, 2));
  EXPECT_THAT(subset_sum.Best(sizes, 2, 2'999'000'000), ElementsAre(1, 2)) << "3e9 is above the limit";
}

}  // namespace
}  // namespace bfio::core
