// least_work on decisions small enough to add up by hand what each worker would have to compute.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Blocks = std::vector<uint64_t>;
using Workers = std::vector<int32_t>;

constexpr int64_t kPerBlock = kPrefixBlockTokens;
const Blocks kTenBlocks = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

// Ranks with nine free slots and these numbers of requests, which count as `output_tokens` each.
PolicyCase Ranks(const std::vector<int32_t>& active, double output_tokens = 100) {
  PolicyCase ranks;
  for (const int32_t requests : active) ranks.Worker(0, 9, kAmpleKv, requests);
  return ranks.Caches(output_tokens);
}

Workers Place(PolicyCase ranks, const std::vector<Blocks>& prompts, int64_t tokens, Policy& policy) {
  for (const Blocks& blocks : prompts) ranks.Waiting(tokens).Prefix(blocks);
  return ranks.Decide(policy);
}
Workers Place(const PolicyCase& ranks, const std::vector<Blocks>& prompts, int64_t tokens = 3 * kPerBlock) {
  return Place(ranks, prompts, tokens, *PolicyNamed("least_work"));
}

TEST(LeastWork, APromptGoesWhereItsPrefixIsUnlessThatWorkerFindsNothingOrIsFull) {
  PolicyCase at = Ranks({0, 0, 0}).Cached(2, {1, 2});
  EXPECT_THAT(Place(at, {{1, 2}}), ElementsAre(2));
  EXPECT_THAT(Place(at, {{1, 9}}), ElementsAre(2)) << "a part of it";
  EXPECT_THAT(Place(at.CacheFails(2), {{1, 2}}), ElementsAre(0));
  EXPECT_THAT(Place(CaseOf({{0, 9}, {0, 0}}).Caches(100).Cached(1, {1, 2}), {{1, 2}}), ElementsAre(0));
}

// The outputs of a call (n) arrive together, so they are placed by one plan.
TEST(LeastWork, PrefixesOfThePlanCount) {
  PolicyCase at = Ranks({0, 0, 0, 0}, 10);
  at.prefixes().hit_share = 1;
  const Blocks prompt = {1, 2, 3, 4, 5, 6, 7, 8}, begun(prompt.begin(), prompt.end() - 1);
  constexpr int64_t kTokens = 9 * kPerBlock;
  EXPECT_THAT(Place(at, {prompt, prompt, prompt}, kTokens), ElementsAre(0, 0, 0));
  EXPECT_THAT(Place(at, {prompt, {1, 2, 3, 4, 5, 6, 7, 20}, {30}}, kTokens), ElementsAre(0, 0, 1))
      << "a part of it";
  EXPECT_THAT(Place(at, {begun, prompt, prompt}, kTokens), ElementsAre(0, 0, 0))
      << "and what the second adds";
  const auto policy = PolicyNamed("least_work");
  EXPECT_THAT(Place(at, {prompt, prompt}, kTokens, *policy), ElementsAre(0, 0));
  EXPECT_THAT(Place(at, {prompt}, kTokens, *policy), ElementsAre(1)) << "those of this plan";
  for (WorkerIndex g = 0; g < 4; ++g) at.CacheFails(g);
  EXPECT_THAT(Place(at, {prompt, prompt}, kTokens), ElementsAre(0, 1)) << "nothing is found";
  EXPECT_THAT(Place(at.OpenCaches(false), {prompt, prompt}, kTokens), ElementsAre(0, 1)) << "no caches";
}

TEST(LeastWork, AtTheDeadlineTheRestArePlacedByNumber) {
  const PolicyCase at = Ranks({0, 0, 0, 0}, 1).Cached(2, {1, 2, 3});
  bool over = false;
  const auto policy = PolicyNamed("least_work", {.stop = [&] { return over; }});
  const auto on_rank_2 = [&] {
    const Workers workers = Place(at, std::vector<Blocks>(20, {1, 2, 3}), 3 * kPerBlock, *policy);
    EXPECT_THAT(workers, Each(::testing::Ge(0)));
    return std::count(workers.begin(), workers.end(), 2);
  };
  EXPECT_EQ(on_rank_2(), 9) << "all its slots";
  over = true;
  EXPECT_LT(on_rank_2(), 9);
}

// Rank 0 is full and has the prefix of the older request cached; rank 1 has a free slot and the younger one's
// prefix.
struct ShortCase {
  int64_t age = 30, p99 = 20, tokens = 3 * kPerBlock;
  // Requests of rank 1, and the class of the first request.
  int32_t active = 1, priority = 0;
  bool draining = false;
  // Memory of rank 0; the maximum KV tokens of a request, and whether admission estimates them.
  int64_t total_kv = kAmpleKv, reserve = 3 * kPerBlock;
  bool estimates = false;
  std::vector<Blocks> waiting = {{1, 2}, {5, 6}};
  // Whether what rank 0 has was not found there; what else ranks have.
  bool fails = false;
  std::vector<std::pair<WorkerIndex, Blocks>> cached = {};
  StopSignal stop = {};

  Workers Decide() const { return WorkersOf(Call()); }
  Workers WorkersOf(const Decision& decision) const { return Group().WorkersOf(decision); }
  Decision Call() const { return Group().Call(*PolicyNamed("least_work", {.stop = stop})); }
  PolicyCase Group() const {
    PolicyCase group = PolicyCase().Worker(0, 0, kAmpleKv, 5).TotalKv(total_kv);
    if (draining) group.Draining();
    group.Worker(0, 1, kAmpleKv, active);
    group.Caches(100).Cached(0, {1, 2}).Cached(1, {5, 6}).FirstCome(p99);
    for (const auto& [worker, blocks] : cached) group.Cached(worker, blocks);
    if (fails) group.CacheFails(0);
    for (size_t i = 0; i < waiting.size(); ++i)
      group.Waiting(tokens, age, reserve, i == 0 ? priority : 0).Prefix(waiting[i]);
    if (estimates) group.Kv(1, 1, {0, kAmpleKv}, std::vector<int64_t>(waiting.size(), tokens));
    return group;
  }
};

TEST(LeastWork, WhereItsPrefixIsFullARequestLetsYoungerOnesGoFirst) {
  const struct {
    const char* claim;
    ShortCase at_hand;
    Workers workers;
  } kRows[] = {
      {"the older one waits for its prefix", {}, {-1, 1}},
      {"one without a prefix goes first, too", {.waiting = {{1, 2}, {}}}, {-1, 1}},
      {"for at most twice the first-come wait", {.age = 40}, {-1, 1}},
      {"no longer than that", {.age = 41}, {1, -1}},
      {"no slot stays empty for longer than the prefix takes to compute",
       {.waiting = {{1, 2}, {1, 2, 9}}},
       {1, -1}},
      {"a more urgent request goes first wherever its prefix is", {.priority = 1}, {1, -1}},
      {"no request waits for a draining worker", {.draining = true, .waiting = {{1, 2}, {}}}, {1, -1}},
      {"nor for one that does not find what it should have",
       {.waiting = {{1, 2}, {}}, .fails = true},
       {1, -1}},
      {"but for one that just holds it", {.total_kv = 3 * kPerBlock}, {-1, 1}},
      {"not for one that is too small", {.total_kv = 3 * kPerBlock - 1, .waiting = {{1, 2}, {}}}, {1, -1}},
      {"where needs are estimated it may end early",
       {.total_kv = 3 * kPerBlock, .reserve = 100 * kPerBlock, .estimates = true},
       {-1, 1}},
      {"not even its prompt fits",
       {.total_kv = 3 * kPerBlock - 1,
        .reserve = 100 * kPerBlock,
        .estimates = true,
        .waiting = {{1, 2}, {}}},
       {1, -1}},
      {"a part of the prefix at the free rank is not enough to stay", {.cached = {{1, {1}}}}, {-1, 1}},
      {"of two without one elsewhere that with more of its own here goes first",
       {.waiting = {{}, {5, 6}}},
       {-1, 1}},
      {"for as long", {.age = 41, .waiting = {{}, {5, 6}}}, {1, -1}},
      {"the free rank has all of it by now", {.cached = {{1, {1, 2}}}}, {1, -1}},
  };
  for (const auto& row : kRows) EXPECT_EQ(row.at_hand.Decide(), row.workers) << row.claim;
}

// Ten blocks are cached on rank 0 only; computing them takes 2.5 steps.
TEST(LeastWork, ARequestWaitsForItsPrefixAsLongAsItTakesToCompute) {
  ShortCase one = {
      .age = 1, .p99 = 0, .tokens = 11 * kPerBlock, .waiting = {kTenBlocks}, .cached = {{0, kTenBlocks}}};
  EXPECT_THAT(one.Decide(), ElementsAre(-1));
  one.age = 2;
  EXPECT_THAT(one.Decide(), ElementsAre(1));
  one.age = one.active = 0;
  EXPECT_THAT(one.Decide(), ElementsAre(1)) << "an idle rank delays nobody";
  ShortCase urgent = one;
  urgent.active = urgent.priority = 1;
  urgent.waiting.push_back({5, 6});
  EXPECT_THAT(urgent.Decide(), ElementsAre(1, -1))
      << "steps of computing elsewhere, and still before a lower class";
  urgent.priority = 0;
  EXPECT_THAT(urgent.Decide(), ElementsAre(-1, 1)) << "others of its class may";
}

TEST(LeastWork, TheDeadlineCountsWhereNothingIsPlaced) {
  // The order takes two readings, one for eight requests.
  int left = 100;
  const ShortCase all = {
      .age = 0, .waiting = std::vector<Blocks>(20, {1, 2}), .stop = [&] { return --left < 0; }};
  const Decision in_time = all.Call();
  EXPECT_EQ(in_time.assignments.size(), 1u) << "the only slot";
  EXPECT_FALSE(in_time.stopped_early);
  for (const int readings : {2, 0}) {
    left = readings;
    EXPECT_TRUE(all.Call().stopped_early) << readings;
  }
}

TEST(LeastWork, RequestsThatFitNowhereAreNotLookedUp) {
  int readings = 0;
  const ShortCase large = {.reserve = kAmpleKv + 1, .waiting = std::vector<Blocks>(30, {1, 2}), .stop = [&] {
                             return ++readings < 0;
                           }};
  EXPECT_THAT(large.Decide(), Each(-1));
  EXPECT_EQ(readings, 0) << "of the deadline, which come with look-ups";
}

}  // namespace
}  // namespace bfio::core
