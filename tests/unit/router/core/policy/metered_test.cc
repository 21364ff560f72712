// Which requests are sent to coupled engines: decisions by prefix, tenant, class and memory.
#include "router/core/policy/metered/metered.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/core/policy/metered/fair_order.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_view.h"
#include "router/core/prefix/prefix_view.h"
#include "tests/testing/policy_case.h"

namespace bfio::core::metered_test {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kPerBlock = kPrefixBlockTokens;

// Engines without decodes, so prompts are sent immediately; unless a test says otherwise they fill their own
// steps.
struct Case {
  PolicyCase ranks;
  PrefillView prefill;
  PrefixCaches caches;
  PrefixView prefixes;
  std::vector<WaitingView> waiting;
  std::vector<std::vector<uint64_t>> names;

  explicit Case(const std::vector<int32_t>& free_slots) {
    std::vector<PrefixCaches::Member> members;
    for (size_t g = 0; g < free_slots.size(); ++g) {
      ranks.Worker(0, free_slots[g]);
      members.push_back({g + 1, true, 1000 * kPerBlock});
      prefill.ranks.emplace_back();
    }
    prefill.token_budget = 2048;
    prefill.releases_only = true;
    caches.Open(members);
    prefixes.caches = &caches;
    names.reserve(64);
  }
  WaitingView& Add(int64_t blocks, std::vector<uint64_t> prefix = {}) {
    WaitingView& request = waiting.emplace_back();
    request.id = waiting.size();
    request.prefill_tokens = blocks * kPerBlock;
    names.push_back(std::move(prefix));
    request.prefix = names.back();
    return request;
  }
  std::vector<int32_t> Decide() {
    Snapshot snapshot = ranks.View();
    snapshot.waiting = waiting;
    snapshot.pool_size = static_cast<int64_t>(waiting.size());
    snapshot.prefill = &prefill;
    snapshot.prefixes = &prefixes;
    Decision decision;
    (*MakePolicy("bf_io_auto", {}))->Decide(snapshot, decision);
    std::vector<int32_t> workers(waiting.size(), -1);
    for (const Assignment& assignment : decision.assignments)
      workers[static_cast<size_t>(assignment.waiting_index)] = assignment.worker;
    return workers;
  }
};

TEST(MeteredPolicyTest, APromptGoesToTheEngineThatHasItsPrefix) {
  for (const bool releases_only : {true, false}) {
    Case at({4, 4, 4});
    at.prefill.releases_only = releases_only;
    at.caches.Placed(1, std::vector<uint64_t>{1, 2}, 3 * kPerBlock);
    at.Add(4, {1, 2, 3});
    EXPECT_THAT(at.Decide(), ElementsAre(1)) << releases_only;
  }
}

TEST(MeteredPolicyTest, AnEngineThatDrainsIsNotWaitedFor) {
  Case at({4, 0});
  at.ranks.Draining();
  at.caches.Placed(1, std::vector<uint64_t>{1, 2, 3}, 100 * kPerBlock);
  at.Add(100, {1, 2, 3});
  EXPECT_THAT(at.Decide(), ElementsAre(0));
}

TEST(MeteredPolicyTest, WhereSlotsAreShortTheLeastServedTenantIsNext) {
  Case at({1, 1});
  at.Add(4).tenant_excess_tokens = 5 * kPerBlock;
  at.waiting.back().tenant = 1;
  at.Add(4).tenant_excess_tokens = 5 * kPerBlock;
  at.waiting.back().tenant = 1;
  at.Add(4).tenant = 2;
  at.Add(4).tenant = 2;
  // The tenant is five blocks ahead, and still one block after a request of the other tenant.
  EXPECT_THAT(at.Decide(), ElementsAre(-1, -1, ::testing::Ge(0), ::testing::Ge(0)));
}

TEST(MeteredPolicyTest, ARequestThatFitsNoMemoryHoldsUpNoOther) {
  Case at({1, 1});
  at.Add(4).kv_reserve_tokens = 2 * kAmpleKv;
  at.Add(4).kv_reserve_tokens = 4 * kPerBlock;
  at.Add(4).priority = -1;
  EXPECT_THAT(at.Decide(), ElementsAre(-1, ::testing::Ge(0), ::testing::Ge(0)));
}

TEST(MeteredPolicyTest, AMoreUrgentClassGoesFirstWhateverItsTenantHasHad) {
  Case at({1});
  at.Add(4).priority = 1;
  at.waiting.back().tenant_excess_tokens = 1e6;
  at.Add(4).tenant = 2;
  EXPECT_THAT(at.Decide(), ElementsAre(0, -1));
}

TEST(FairOrderTest, TenantsAreChargedPromptAndMeanOutputTwice) {
  std::vector<WaitingView> waiting(5);
  const std::vector<uint32_t> tenants = {1, 1, 2, 1, 2};
  for (size_t i = 0; i < waiting.size(); ++i) {
    waiting[i].tenant = tenants[i];
    waiting[i].prefill_tokens = 100;
  }
  std::vector<int32_t> order;
  FairOrder(waiting, 10, order);
  EXPECT_THAT(order, ElementsAre(0, 2, 1, 4, 3));
  // 250 tokens are two requests of 120 tokens and a part of one.
  for (WaitingView& request : waiting) request.tenant_excess_tokens = request.tenant == 1 ? 250 : 0;
  FairOrder(waiting, 10, order);
  EXPECT_THAT(order, ElementsAre(2, 4, 0, 1, 3));
  for (WaitingView& request : waiting) request.tenant_excess_tokens = request.tenant == 1 ? 110 : 0;
  FairOrder(waiting, 10, order);
  EXPECT_THAT(order, ElementsAre(2, 0, 4, 1, 3));
  for (WaitingView& request : waiting) request.tenant = 7;
  FairOrder(waiting, 10, order);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4)) << "the pool's";
}

}  // namespace
}  // namespace bfio::core::metered_test
