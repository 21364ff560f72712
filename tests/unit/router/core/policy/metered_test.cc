// Which requests are sent to coupled engines: decisions by prefix, tenant, class and memory.
#include "router/core/policy/metered/metered.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "router/core/policy/fair_order.h"
#include "router/core/prefill/prefill_view.h"
#include "tests/testing/policy_case.h"

namespace bfio::core::metered_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Ge;

constexpr int64_t kPrompt = 4 * kPrefixBlockTokens;

// Engines with these free slots and without decodes, so prompts are sent immediately; they fill their own
// steps or keep to levels.
class Engines : public PolicyCase {
 public:
  explicit Engines(const std::vector<int32_t>& free_slots, bool releases_only = true,
                   const std::vector<int64_t>& loads = {}) {
    for (size_t g = 0; g < free_slots.size(); ++g) Worker(loads.empty() ? 0 : loads[g], free_slots[g]);
    Caches();
    view_.ranks.resize(free_slots.size());
    view_.token_budget = 2048;
    view_.releases_only = releases_only;
    Prefill(&view_);
  }
  // Every rank decodes that many requests.
  void Busy(int64_t decodes, const BatchCost& cost = {},
            PrefillTraffic traffic = {.arrivals_per_s = 10, .mean_prompt_tokens = 100 * kPrompt}) {
    for (PrefillRank& rank : view_.ranks) {
      rank.cost = cost;
      rank.decodes = decodes;
      rank.decode_context = 1000 * static_cast<double>(decodes);
    }
    traffic.mean_prefill_s = 1;
    traffic.mean_output_tokens = 100;
    traffic.step_s = 0.1;
    view_.traffic = traffic;
  }
  std::vector<int32_t> Decide() const { return PolicyCase::Decide("bf_io_auto"); }

 private:
  PrefillView view_;
};

TEST(MeteredPolicyTest, APromptGoesToTheEngineThatHasItsPrefix) {
  for (const bool releases_only : {true, false}) {
    Engines at({4, 4, 4}, releases_only);
    at.Cached(1, {1, 2}).Waiting(kPrompt).Prefix({1, 2, 3});
    EXPECT_THAT(at.Decide(), ElementsAre(1)) << releases_only;
  }
}

TEST(MeteredPolicyTest, WhereSlotsAreShortTheLeastServedTenantIsNext) {
  for (const bool releases_only : {true, false}) {
    Engines at({1, 1}, releases_only);
    // The tenant is five blocks ahead, and still one block after a request of the other tenant.
    for (int i = 0; i < 2; ++i) at.Waiting(kPrompt).Tenant(1, 5 * kPrefixBlockTokens);
    for (int i = 0; i < 2; ++i) at.Waiting(kPrompt).Tenant(2);
    EXPECT_THAT(at.Decide(), ElementsAre(-1, -1, Ge(0), Ge(0))) << releases_only;
  }
}

TEST(MeteredPolicyTest, ARequestThatFitsNoMemoryHoldsUpNoOther) {
  for (const bool releases_only : {true, false}) {
    Engines at({1, 1}, releases_only);
    at.Waiting(kPrompt, 0, 2 * kAmpleKv).Waiting(kPrompt).Waiting(kPrompt, 0, 0, /*priority=*/-1);
    EXPECT_THAT(at.Decide(), ElementsAre(-1, Ge(0), Ge(0))) << releases_only;
  }
}

// Where ranks are busy with prompts, more prompts wait than slots are free, but slots are left.
TEST(MeteredPolicyTest, BusyRanksTakeWhatTheyCanComputeHoweverManyWait) {
  Engines at({4, 4}, /*releases_only=*/false);
  at.Busy(/*decodes=*/64);
  for (int i = 0; i < 5; ++i) at.Waiting(100 * kPrompt).Tenant(1, 1e6);
  at.Waiting(100 * kPrompt, 0, 2 * kAmpleKv).Tenant(2);
  for (int i = 0; i < 5; ++i) at.Waiting(100 * kPrompt).Tenant(2);
  EXPECT_THAT(at.Decide(), ElementsAre(-1, -1, -1, -1, -1, -1, Ge(0), Ge(0), -1, -1, -1));
  // The plan decides, and not the sizes of requests.
  Engines uneven({4, 4}, /*releases_only=*/false, {1'000'000, 0});
  uneven.Busy(/*decodes=*/64);
  uneven.Waiting(100 * kPrompt).Waiting(150 * kPrompt);
  for (int i = 0; i < 8; ++i) uneven.Waiting(kPrompt);
  EXPECT_THAT(uneven.Decide(), ElementsAre(1, 0, -1, -1, -1, -1, -1, -1, -1, -1));
}

// Of a tenant's prompts, by age over the root of the length, as long as none has waited twice as long as it
// should under first come, first served.
TEST(MeteredPolicyTest, WhereSlotsAreShortAShortPromptMayPassLongOnesForAWhile) {
  for (const int64_t waited : {190, 210}) {
    Engines at({4, 4}, /*releases_only=*/false);
    at.Busy(/*decodes=*/64);
    at.FirstCome(100);
    for (int i = 0; i < 10; ++i) at.Waiting(i < 2 ? 100 * kPrompt : 25 * kPrompt, i < 2 ? waited : 180);
    const std::vector<int32_t> ranks = at.Decide();
    for (const int i : {0, 1}) EXPECT_EQ(ranks[i] >= 0, waited == 210) << i;
    for (const int i : {2, 3}) EXPECT_EQ(ranks[i] >= 0, waited == 190) << i;
  }
}

// The sizes of requests decide and not their order: that of 900 tokens goes to the rank with 100.
TEST(MeteredPolicyTest, WhereMoreWaitThanSlotsAreFreeTheirLoadsDecide) {
  Engines at({1, 1}, /*releases_only=*/true, {1000, 100});
  at.Waiting(900).ComputedElsewhere().Waiting(20).ComputedElsewhere().Waiting(20).ComputedElsewhere();
  EXPECT_THAT(at.Decide(), ElementsAre(1, 0, -1));
}

// A prompt of 0.1 s on one of two ranks delays 1,000 decodes by 0.05 s that they could avoid. Both prompts
// have waited longer, without a slot; now there is one.
TEST(MeteredPolicyTest, APromptWaitsForCompanySinceThereIsRoomForIt) {
  const auto policy = PolicyNamed("bf_io_auto");
  for (const int64_t steps : {0, 400, 500}) {
    Engines at({1, 0});
    at.Busy(/*decodes=*/500, {.a_s_per_token = 1e-4}, {.arrivals_per_s = 1, .mean_prompt_tokens = 1'000});
    at.Later(steps).Waiting(1'000, 1'000).Waiting(1'000, 1'000);
    EXPECT_EQ(at.PolicyCase::Decide(*policy), (std::vector<int32_t>{steps < 500 ? -1 : 0, -1})) << steps;
  }
}

TEST(MeteredPolicyTest, AMoreUrgentClassGoesFirstWhateverItsTenantHasHad) {
  Engines at({1});
  at.Waiting(kPrompt, 0, 0, /*priority=*/1).Tenant(0, 1e6).Waiting(kPrompt).Tenant(2);
  EXPECT_THAT(at.Decide(), ElementsAre(0, -1));
}

TEST(FairOrderTest, TenantsAreChargedPromptAndMeanOutputTwice) {
  // A prompt of 100 tokens and 10 of output, twice: 120 tokens per request.
  const auto order = [](const std::vector<uint32_t>& tenants, double excess_of_1) {
    PolicyCase pool;
    for (const uint32_t tenant : tenants) pool.Waiting(100).Tenant(tenant, tenant == 1 ? excess_of_1 : 0);
    std::vector<int32_t> result;
    FairOrder(pool.View().waiting, 10, {}, result);
    return result;
  };
  const std::vector<uint32_t> tenants = {1, 1, 2, 1, 2};
  EXPECT_THAT(order(tenants, 0), ElementsAre(0, 2, 1, 4, 3));
  EXPECT_THAT(order(tenants, 250), ElementsAre(2, 4, 0, 1, 3)) << "two requests and a part of one";
  EXPECT_THAT(order(tenants, 110), ElementsAre(2, 0, 4, 1, 3));
  EXPECT_THAT(order({7, 7, 7, 7, 7}, 0), ElementsAre(0, 1, 2, 3, 4)) << "the pool's";
}

// The rules that groups without a barrier have by default. One tenant's requests delayed all others until
// its last one was placed.
TEST(FairPolicyTest, TheOldestOfEachTenantGoesFirst) {
  for (const char* name : {"least_work", "jffc"}) {
    PolicyCase pool;
    pool.Worker(0, 2).Waiting(100, 0, 0, /*priority=*/1).Tenant(3);
    for (int i = 0; i < 3; ++i) pool.Waiting(100, 9).Tenant(1);
    pool.Waiting(100).Tenant(2);
    EXPECT_THAT(pool.Decide(name), ElementsAre(0, 0, -1, -1, -1)) << name;
    EXPECT_THAT(PolicyCase(pool).Worker(0, 1).Decide(name), ElementsAre(Ge(0), Ge(0), -1, -1, Ge(0))) << name;
  }
}

}  // namespace
}  // namespace bfio::core::metered_test
