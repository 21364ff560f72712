// least_work on decisions small enough to add up by hand what each worker would have to compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "router/core/policy/policy.h"
#include "router/core/prefix/prefix_view.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

constexpr int64_t kPerBlock = kPrefixBlockTokens;

struct Case {
  PolicyCase ranks;
  PrefixCaches caches;
  PrefixView view;
  std::vector<std::vector<uint64_t>> prompts;

  explicit Case(std::vector<int32_t> active, double output_tokens = 100) {
    std::vector<PrefixCaches::Member> members;
    for (size_t g = 0; g < active.size(); ++g) {
      ranks.Worker(0, 9, kAmpleKv, active[g]);
      members.push_back({g + 1, true, 1000 * kPerBlock});
    }
    caches.Open(members);
    view.caches = &caches;
    view.pending.assign(active.size(), 0);
    view.output_tokens = output_tokens;
  }
  // The worker of each request, or -1.
  std::vector<int32_t> Decide(Policy& policy, const std::vector<std::vector<uint64_t>>& waiting,
                              int64_t prompt_tokens) {
    PolicyCase at_hand = ranks;
    for (size_t i = 0; i < waiting.size(); ++i) at_hand.Waiting(prompt_tokens);
    Snapshot snapshot = at_hand.View();
    std::vector<WaitingView> views(snapshot.waiting.begin(), snapshot.waiting.end());
    for (size_t i = 0; i < waiting.size(); ++i) views[i].prefix = waiting[i];
    snapshot.waiting = views;
    snapshot.prefixes = &view;
    Decision decision;
    policy.Decide(snapshot, decision);
    return at_hand.WorkersOf(decision);
  }
  std::vector<int32_t> Decide(const std::vector<std::vector<uint64_t>>& waiting, int64_t prompt_tokens) {
    return Decide(**MakePolicy("least_work", {}), waiting, prompt_tokens);
  }
};

TEST(LeastWork, APromptGoesWhereItsPrefixIs) {
  Case at({0, 0, 0});
  at.caches.Placed(2, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
  EXPECT_EQ(at.Decide({{1, 2}}, 3 * kPerBlock), std::vector<int32_t>{2});
  EXPECT_EQ(at.Decide({{1, 9}}, 3 * kPerBlock), std::vector<int32_t>{2}) << "a part of it";
}

TEST(LeastWork, APrefixIsWorthAsManyRequestsAsItsTokensAreOutputs) {
  // 128 tokens are found; one more request counts as 100 tokens.
  Case one({0, 1});
  one.caches.Placed(1, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
  EXPECT_EQ(one.Decide({{1, 2}}, 3 * kPerBlock), std::vector<int32_t>{1});
  Case two({0, 2});
  two.caches.Placed(1, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
  EXPECT_EQ(two.Decide({{1, 2}}, 3 * kPerBlock), std::vector<int32_t>{0});
}

TEST(LeastWork, PromptsThatAreNotComputedCount) {
  Case at({1, 1});
  at.view.pending = {500, 0};
  EXPECT_EQ(at.Decide({{}}, 300), std::vector<int32_t>{1});
  at.view.pending = {0, 500};
  EXPECT_EQ(at.Decide({{}}, 300), std::vector<int32_t>{0});
}

TEST(LeastWork, PlacementsOfThePlanCount) {
  Case at({0, 0}, 10);
  EXPECT_EQ(at.Decide({{}, {}, {}}, 300), (std::vector<int32_t>{0, 1, 0}));
  // By number of requests the third would go to rank 0, which has the longest prompt to compute.
  const PolicyCase lengths = PolicyCase().Worker(0, 9).Worker(0, 9).WaitingAll({1000, 300, 10});
  Snapshot snapshot = lengths.View();
  snapshot.prefixes = &at.view;
  Decision decision;
  (*MakePolicy("least_work", {}))->Decide(snapshot, decision);
  EXPECT_EQ(lengths.WorkersOf(decision), (std::vector<int32_t>{0, 1, 1}));
}

// The outputs of a call (n) arrive together, so they are placed by one plan.
TEST(LeastWork, PrefixesOfThePlanCount) {
  Case at({0, 0, 0, 0}, 10);
  at.view.hit_share = 0.5;
  const std::vector<uint64_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(at.Decide({prompt, prompt, prompt}, 9 * kPerBlock), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(at.Decide({prompt, {1, 2, 3, 4, 5, 6, 7, 20}, {30}}, 9 * kPerBlock),
            (std::vector<int32_t>{0, 0, 1}))
      << "a part of it";
  const std::vector<uint64_t> begun = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(at.Decide({begun, prompt, prompt}, 9 * kPerBlock), (std::vector<int32_t>{0, 0, 0}))
      << "and what the second adds";
  const auto policy = MakePolicy("least_work", {});
  EXPECT_EQ(at.Decide(**policy, {prompt, prompt}, 9 * kPerBlock), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(at.Decide(**policy, {prompt}, 9 * kPerBlock), std::vector<int32_t>{1}) << "those of this plan";
  for (int i = 0; i < 200; ++i) {
    for (WorkerIndex g = 0; g < 4; ++g) at.caches.Observed(g, 128, 0);
  }
  EXPECT_EQ(at.Decide({prompt, prompt}, 9 * kPerBlock), (std::vector<int32_t>{0, 1})) << "nothing is found";
  const std::vector<PrefixCaches::Member> members(4, {0, false, 1000 * kPerBlock});
  at.caches.Open(members);
  EXPECT_EQ(at.Decide({prompt, prompt}, 9 * kPerBlock), (std::vector<int32_t>{0, 1})) << "no caches";
}

TEST(LeastWork, WithoutPrefixesItTakesTurnsAmongThoseWithFewest) {
  Case at({3, 1, 1}, 0);
  const auto policy = MakePolicy("least_work", {});
  EXPECT_EQ(at.Decide(**policy, {{}}, 1), std::vector<int32_t>{1});
  EXPECT_EQ(at.Decide(**policy, {{}}, 1), std::vector<int32_t>{2});
  EXPECT_EQ(at.Decide(**policy, {{}}, 1), std::vector<int32_t>{1});
}

TEST(LeastWork, AWorkerThatConfirmsNothingHasNoPrefix) {
  Case at({0, 0});
  at.caches.Placed(1, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
  for (int i = 0; i < 200; ++i) at.caches.Observed(1, 128, 0);
  EXPECT_EQ(at.Decide({{1, 2}}, 3 * kPerBlock), std::vector<int32_t>{0});
}

TEST(LeastWork, AFullWorkerIsSkippedWhateverItHas) {
  Case at({0});
  at.ranks.Worker(0, 0, kAmpleKv, 0);
  const std::vector<PrefixCaches::Member> members = {{1, true, 1000 * kPerBlock},
                                                     {2, true, 1000 * kPerBlock}};
  at.caches.Open(members);
  at.caches.Placed(1, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
  at.view.pending = {0, 0};
  EXPECT_EQ(at.Decide({{1, 2}}, 3 * kPerBlock), std::vector<int32_t>{0});
}

TEST(LeastWork, AtTheDeadlineTheRestArePlacedByNumber) {
  Case at({0, 0, 0, 0}, 1);
  const std::vector<uint64_t> prompt = {1, 2, 3};
  at.caches.Placed(2, prompt, 3 * kPerBlock);
  bool over = false;
  const auto policy = MakePolicy("least_work", {.stop = [&] { return over; }});
  const std::vector<std::vector<uint64_t>> alike(20, prompt);
  const auto on_rank_2 = [&] {
    const std::vector<int32_t> workers = at.Decide(**policy, alike, 3 * kPerBlock);
    EXPECT_EQ(std::count(workers.begin(), workers.end(), -1), 0);
    return std::count(workers.begin(), workers.end(), 2);
  };
  EXPECT_EQ(on_rank_2(), 9) << "all its slots";
  over = true;
  EXPECT_LT(on_rank_2(), 9);
}

// Rank 0 is full and has the prefix of the older request cached; rank 1 has a free slot and the younger one's
// prefix.
struct ShortCase {
  Case at{{5, 1, 2}};
  int64_t age = 30, p99 = 20, tokens = 3 * kPerBlock;
  int32_t active = 1;
  int32_t priority = 0;
  bool draining = false;
  // A third rank, with a slot and one request more than the second.
  bool third = false;
  // Memory of rank 0; the maximum KV tokens of a request, and whether admission estimates them.
  int64_t total_kv = kAmpleKv, reserve = 3 * kPerBlock;
  bool estimates = false;
  StopSignal stop;
  bool stopped = false;
  std::vector<std::vector<uint64_t>> waiting = {{1, 2}, {5, 6}};

  std::vector<int32_t> Decide() {
    PolicyCase at_hand;
    at_hand.Worker(0, 0, kAmpleKv, 5).TotalKv(total_kv);
    if (draining) at_hand.Draining();
    at_hand.Worker(0, 1, kAmpleKv, active);
    if (third) at_hand.Worker(0, 1, kAmpleKv, active + 1);
    for (size_t i = 0; i < waiting.size(); ++i) at_hand.Waiting(tokens, age, reserve, i == 0 ? priority : 0);
    if (estimates) at_hand.Kv(1, 1, {0, kAmpleKv}, std::vector<int64_t>(waiting.size(), tokens));
    at.caches.Placed(0, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
    at.caches.Placed(1, std::vector<uint64_t>{5, 6}, 3 * kPerBlock);
    Snapshot snapshot = at_hand.View();
    std::vector<WaitingView> views(snapshot.waiting.begin(), snapshot.waiting.end());
    for (size_t i = 0; i < waiting.size(); ++i) views[i].prefix = waiting[i];
    snapshot.waiting = views;
    snapshot.prefixes = &at.view;
    const std::vector<ClassWait> waits = {{0, p99, p99}, {1, p99, p99}};
    snapshot.first_come = waits;
    Decision decision;
    (*MakePolicy("least_work", {.stop = stop}))->Decide(snapshot, decision);
    stopped = decision.stopped_early;
    return at_hand.WorkersOf(decision);
  }
};

TEST(LeastWork, WhereItsPrefixIsFullARequestLetsYoungerOnesGoFirst) {
  EXPECT_EQ(ShortCase().Decide(), (std::vector<int32_t>{-1, 1}));
  ShortCase none;
  none.waiting[1] = {};
  EXPECT_EQ(none.Decide(), (std::vector<int32_t>{-1, 1})) << "one without a prefix, too";
}

TEST(LeastWork, ARequestWaitsAtMostTwiceTheFirstComeWait) {
  ShortCase late;
  late.age = 40;
  EXPECT_EQ(late.Decide(), (std::vector<int32_t>{-1, 1}));
  late.age = 41;
  EXPECT_EQ(late.Decide(), (std::vector<int32_t>{1, -1}));
}

TEST(LeastWork, NoSlotStaysEmptyForAPrefixForLongerThanItTakesToCompute) {
  ShortCase alike;
  alike.waiting[1] = {1, 2, 9};
  EXPECT_EQ(alike.Decide(), (std::vector<int32_t>{1, -1})) << "the older of two that miss theirs";
}

// Ten blocks are cached on rank 0 only; computing them takes 2.5 steps.
TEST(LeastWork, ARequestWaitsForItsPrefixAsLongAsItTakesToCompute) {
  ShortCase one;
  one.waiting = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  one.at.caches.Placed(0, one.waiting[0], 11 * kPerBlock);
  one.p99 = 0;
  one.tokens = 11 * kPerBlock;
  one.age = 1;
  EXPECT_EQ(one.Decide(), std::vector<int32_t>{-1});
  one.age = 2;
  EXPECT_EQ(one.Decide(), std::vector<int32_t>{1});
  one.age = 0;
  one.active = 0;
  EXPECT_EQ(one.Decide(), std::vector<int32_t>{1}) << "an idle rank delays nobody";
}

TEST(LeastWork, ARequestWaitsForAPrefixThatThePlanBrings) {
  ShortCase both;
  both.waiting.assign(2, {21, 22, 23, 24, 25, 26, 27, 28, 29, 30});
  both.tokens = 11 * kPerBlock;
  both.age = 0;
  both.third = true;
  EXPECT_EQ(both.Decide(), (std::vector<int32_t>{1, -1}));
}

TEST(LeastWork, AMoreUrgentRequestGoesFirstWhereverItsPrefixIs) {
  ShortCase urgent;
  urgent.priority = 1;
  EXPECT_EQ(urgent.Decide(), (std::vector<int32_t>{1, -1}));
  urgent.waiting[0] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  urgent.at.caches.Placed(0, urgent.waiting[0], 11 * kPerBlock);
  urgent.tokens = 11 * kPerBlock;
  urgent.age = urgent.p99 = 0;
  EXPECT_EQ(urgent.Decide(), (std::vector<int32_t>{1, -1})) << "steps of computing elsewhere";
  urgent.priority = 0;
  EXPECT_EQ(urgent.Decide(), (std::vector<int32_t>{-1, 1})) << "others of its class may";
}

TEST(LeastWork, NoRequestWaitsForADrainingOrCachelessWorker) {
  ShortCase drains;
  drains.draining = true;
  EXPECT_EQ(drains.Decide(), (std::vector<int32_t>{1, -1}));
  ShortCase off;
  for (int i = 0; i < 200; ++i) off.at.caches.Observed(0, 128, 0);
  EXPECT_EQ(off.Decide(), (std::vector<int32_t>{1, -1}));
}

TEST(LeastWork, NoRequestWaitsForAWorkerThatCannotHoldIt) {
  ShortCase small;
  small.total_kv = small.reserve;
  EXPECT_EQ(small.Decide(), (std::vector<int32_t>{-1, 1}));
  --small.total_kv;
  EXPECT_EQ(small.Decide(), (std::vector<int32_t>{1, -1}));
  small.reserve = 100 * kPerBlock;
  small.estimates = true;
  small.total_kv = small.tokens;
  EXPECT_EQ(small.Decide(), (std::vector<int32_t>{-1, 1})) << "it may end early";
  --small.total_kv;
  EXPECT_EQ(small.Decide(), (std::vector<int32_t>{1, -1})) << "not even its prompt";
}

TEST(LeastWork, TheDeadlineCountsWhereNothingIsPlaced) {
  ShortCase all;
  all.waiting.assign(20, {1, 2});
  bool over = false;
  all.stop = [&] { return over; };
  all.age = 0;
  const std::vector<int32_t> placed = all.Decide();
  EXPECT_EQ(std::count(placed.begin(), placed.end(), 1), 1) << "the only slot";
  EXPECT_FALSE(all.stopped);
  over = true;
  all.Decide();
  EXPECT_TRUE(all.stopped);
}

TEST(LeastWork, RequestsThatFitNowhereAreNotLookedUp) {
  ShortCase large;
  large.waiting.assign(30, {1, 2});
  large.reserve = kAmpleKv + 1;
  int readings = 0;
  large.stop = [&] { return ++readings < 0; };
  const std::vector<int32_t> placed = large.Decide();
  EXPECT_EQ(std::count(placed.begin(), placed.end(), -1), 30);
  EXPECT_EQ(readings, 0) << "of the deadline, which come with look-ups";
}

TEST(LeastWork, PartOfAPrefixThereIsNotEnoughToStay) {
  ShortCase part;
  part.at.caches.Placed(1, std::vector<uint64_t>{1}, 2 * kPerBlock);
  EXPECT_EQ(part.Decide(), (std::vector<int32_t>{-1, 1}));
  part.at.caches.Placed(1, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
  EXPECT_EQ(part.Decide(), (std::vector<int32_t>{1, -1})) << "rank 1 has all of it by now";
}

}  // namespace
}  // namespace bfio::core
