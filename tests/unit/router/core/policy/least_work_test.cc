// least_work by hand: decisions small enough to add up what each worker would have to compute.
#include <gtest/gtest.h>

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
  // By request: its worker, or -1.
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
  // 128 tokens found; a request more is 100 tokens.
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

}  // namespace
}  // namespace bfio::core
