#include "router/core/scheduler/tenant_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "common/base/rng.h"
#include "router/core/scheduler/request_pool.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core::tenant_service_test {

using bfio::testing::FirstFit;
using bfio::testing::StepGroup;

// Compared with the definition: a tenant whose first request comes is lifted to the least of those that wait
// and of the floor, or to the tenant whose request was the last to leave an empty pool.
TEST(TenantService, ReturningTenantsAreLiftedAndChargesAddUp) {
  struct Plain {
    double served = 0, charged = 0;
    int64_t waiting = 0, requests = 0;
  };
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    TenantService service;
    std::map<uint32_t, Plain> tenants;
    double floor = 0, last = 0, charged = 0;
    int64_t requests = 0;
    for (int i = 0; i < 400; ++i) {
      const auto tenant = static_cast<uint32_t>(rng.Below(5));
      Plain& plain = tenants[tenant];
      const auto tokens = 1 + static_cast<int64_t>(rng.Below(500));
      const uint64_t event = rng.Below(6);
      if (event < 2) {
        double least = std::numeric_limits<double>::infinity();
        for (const auto& [other, of] : tenants) least = of.waiting > 0 ? std::min(least, of.served) : least;
        const double lifted = least < std::numeric_limits<double>::infinity() ? std::max(least, floor) : last;
        if (plain.waiting++ == 0) plain.served = std::max(plain.served, lifted);
        service.OnWaiting(tenant);
      } else if (event == 2 && plain.waiting > 0) {
        --plain.waiting;
        const auto waits = [](const auto& of) { return of.second.waiting > 0; };
        if (std::none_of(tenants.begin(), tenants.end(), waits)) last = plain.served;
        service.OnLeft(tenant);
      } else if (event == 3) {
        const bool refund = plain.requests > 0 && rng.Below(4) == 0;
        const auto charge = static_cast<double>(refund ? -tokens : tokens) * TenantService::kPromptWeight;
        plain.served += charge, plain.charged += charge, charged += charge;
        plain.requests += refund ? -1 : 1, requests += refund ? -1 : 1;
        service.ChargePrompt(tenant, refund ? -tokens : tokens);
      } else if (event == 4) {
        const double charge = static_cast<double>(tokens) * TenantService::kOutputWeight;
        plain.served += charge, plain.charged += charge, charged += charge;
        service.ChargeOutput(tenant, tokens);
      } else if (event == 5 && rng.Below(3) == 0) {
        // A tenant whose request cannot run now (lower class, too large) keeps a low counter, and the floor
        // is above it.
        service.SetFloor(floor = plain.served);
      }
      for (const auto& [other, of] : tenants) ASSERT_EQ(service.Served(other), of.served) << "event " << i;
      const auto mean = [](double tokens, int64_t of) {
        return of > 0 ? std::max(1.0, tokens / static_cast<double>(of)) : 1;
      };
      ASSERT_NEAR(service.MeanCharge(tenant),
                  plain.requests > 0 ? mean(plain.charged, plain.requests) : mean(charged, requests), 1e-9);
    }
  }
}

// --- in the pool ---

class TenantPool : public ::testing::Test {
 protected:
  void Enqueue(RequestId id, uint32_t tenant) {
    ASSERT_TRUE(pool_.Enqueue({.id = id, .tenant = tenant}).ok());
  }
  RequestPool pool_{SchedulerOptions(), nullptr};
};

// In a burst requests arrive faster than they are admitted, and percentiles describe the past.
TEST_F(TenantPool, ReferenceWaitIsAtLeastThatOfTheNextRequestInFairOrder) {
  Enqueue(1, 1);
  Enqueue(2, 1);
  const int64_t start = pool_.NextStep();
  EXPECT_EQ(pool_.FirstComeWaits(start + 30)[0].p99, 30);
  EXPECT_EQ(pool_.FirstComeWaits(start + 30)[0].long_run_p99, 30);
  pool_.Take(std::vector<Assignment>{{0, 0}}, start + 4);
  EXPECT_EQ(pool_.FirstComeWaits(start + 3)[0].p99, 4);
}

TEST_F(TenantPool, EachRequestIsGivenItsTenantsWaitInTheFairReference) {
  for (RequestId id = 1; id <= 3; ++id) Enqueue(id, 1);
  Enqueue(4, 2);
  pool_.service().ChargePrompt(1, 10);
  const int64_t start = pool_.NextStep();
  // The reference admits one request of each tenant, the pool two of the first.
  pool_.Take(std::vector<Assignment>{{0, 0}, {1, 0}}, start + 4);
  const WorkerView worker = {.free_slots = 1, .free_kv_tokens = 1'000};
  FreeCapacity free;
  free.Reset({&worker, 1}, {});
  pool_.FillTenants(pool_.Window(2), free, start + 9);
  EXPECT_EQ(pool_.views().views()[0].tenant, 1);
  EXPECT_EQ(pool_.views().views()[0].tenant_reference_wait, 9);
  EXPECT_EQ(pool_.views().views()[1].tenant_reference_wait, 0) << "it has been admitted in the reference";
}

TEST_F(TenantPool, ARequestRemovedFromThePoolKeepsNoTenantWaiting) {
  pool_.service().ChargePrompt(1, 100);
  pool_.service().ChargePrompt(2, 300);
  Enqueue(1, 1);
  Enqueue(2, 2);
  EXPECT_TRUE(pool_.Remove(1));
  Enqueue(3, 3);
  EXPECT_EQ(pool_.service().Served(3), 300) << "tenant 2 alone waits";
}

// --- through the scheduler ---

// One worker; by tenant, how much more it was served than the least served one, as the policy sees it.
class TenantGroup : public StepGroup {
 public:
  explicit TenantGroup(int32_t slots) : TenantGroup(new FirstFit, slots) {}
  void Enqueue(RequestId id, uint32_t tenant, int64_t prefill, int64_t generated = 0, int32_t priority = 0) {
    StepGroup::Enqueue({.id = id,
                        .prefill_tokens = prefill,
                        .max_new_tokens = 100,
                        .priority = priority,
                        .tenant = tenant,
                        .generated_tokens = generated});
  }
  double Excess(uint32_t tenant) const {
    for (const WaitingView& view : policy_->waiting) {
      if (view.tenant == tenant) return view.tenant_excess_tokens;
    }
    return 0;
  }

 private:
  TenantGroup(FirstFit* owned, int32_t slots)
      : StepGroup({{.slots = slots, .kv_tokens = 1 << 20}}, std::unique_ptr<Policy>(owned)), policy_(owned) {}
  const FirstFit* const policy_;
};

// Tenant 1 has been served 190 tokens more than tenant 2. Tenant 9 has never been served, and its request
// cannot run now: it is of a lower class, or there is no memory for it.
TEST(TenantExcess, ATenantThatCannotRunDoesNotDelayOthers) {
  for (const bool lower : {false, true}) {
    TenantGroup f(2);
    f.Enqueue(1, 1, 200);
    f.Enqueue(2, 2, 10);
    f.Enqueue(3, 1, 10);
    f.Enqueue(4, 2, 10);
    f.Plan();
    f.End(1), f.End(2);
    f.Step();
    f.Enqueue(5, 9, lower ? 10 : 1 << 20, 0, lower ? -1 : 0);
    f.Plan();
    EXPECT_EQ(f.Excess(1), 190);
    EXPECT_EQ(f.Excess(2), 0);
    EXPECT_EQ(f.Excess(9), 0);
  }
}

TEST(TenantExcess, RejectionsAndReplaysCostNothing) {
  TenantGroup refused(1), replay(1);
  refused.Enqueue(1, 1, 200);
  refused.Enqueue(2, 2, 10);
  refused.Refuse(1);
  replay.Enqueue(1, 1, 200, /*generated=*/50);
  replay.Enqueue(2, 1, 10);
  replay.Enqueue(3, 2, 10);
  for (TenantGroup* f : {&refused, &replay}) {
    f->Step();
    f->Plan();
    EXPECT_EQ(f->Excess(1), 0);
  }
}

}  // namespace bfio::core::tenant_service_test
