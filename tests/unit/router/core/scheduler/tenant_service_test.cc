#include "router/core/scheduler/tenant_service.h"

#include <gtest/gtest.h>

#include <map>

#include "common/base/rng.h"
#include "router/core/scheduler/request_pool.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

TEST(TenantService, PromptAndOutputAreCharged) {
  TenantService service;
  service.ChargePrompt(3, 100);
  service.ChargeOutput(3, 7);
  EXPECT_EQ(service.Served(3), 100 * TenantService::kPromptWeight + 7 * TenantService::kOutputWeight);
  service.ChargePrompt(3, -100);
  EXPECT_EQ(service.Served(3), 7 * TenantService::kOutputWeight);
  EXPECT_EQ(service.Served(4), 0);
}

TEST(TenantService, AReturningTenantIsLiftedToTheLeastWaitingOne) {
  TenantService service;
  service.OnWaiting(1);
  service.OnWaiting(2);
  service.ChargePrompt(1, 500);
  service.ChargePrompt(2, 300);
  service.OnWaiting(3);
  EXPECT_EQ(service.Served(3), 300);
  // The counter is not lowered, and not raised while the tenant already waits.
  service.ChargePrompt(3, 1000);
  service.OnWaiting(3);
  EXPECT_EQ(service.Served(3), 1300);
}

TEST(TenantService, MeanChargeIsThatOfTheTenantsOwnRequestsAndThatOfAllBefore) {
  TenantService service;
  EXPECT_EQ(service.MeanCharge(1), 1) << "no request has been charged for";
  service.ChargePrompt(1, 100);
  service.ChargeOutput(1, 50);
  service.ChargePrompt(1, 300);
  service.ChargePrompt(2, 10);
  EXPECT_EQ(service.MeanCharge(1), 250);
  EXPECT_EQ(service.MeanCharge(2), 10);
  EXPECT_EQ(service.MeanCharge(3), 170);
  service.ChargePrompt(1, -300);
  EXPECT_EQ(service.MeanCharge(1), 200) << "it was paid back";
}

// In a burst requests arrive faster than they are admitted, and percentiles describe the past.
TEST(TenantService, ReferenceWaitIsAtLeastThatOfTheNextRequestInFairOrder) {
  RequestPool pool(SchedulerOptions(), nullptr);
  const auto enqueue = [&](RequestId id, uint32_t tenant) {
    RequestSpec spec = {.id = id, .tenant = tenant};
    ASSERT_TRUE(pool.Enqueue(spec).ok());
  };
  enqueue(1, 1);
  enqueue(2, 1);
  const int64_t start = pool.NextStep();
  EXPECT_EQ(pool.FirstComeWaits(start + 30)[0].p99, 30);
  EXPECT_EQ(pool.FirstComeWaits(start + 30)[0].long_run_p99, 30);
  pool.Take(std::vector<Assignment>{{0, 0}}, start + 4);
  EXPECT_EQ(pool.FirstComeWaits(start + 3)[0].p99, 4);
}

TEST(TenantService, EachRequestIsGivenItsTenantsWaitInTheFairReference) {
  RequestPool pool(SchedulerOptions(), nullptr);
  const auto enqueue = [&](RequestId id, uint32_t tenant) {
    RequestSpec spec = {.id = id, .tenant = tenant};
    ASSERT_TRUE(pool.Enqueue(spec).ok());
  };
  for (RequestId id = 1; id <= 3; ++id) enqueue(id, 1);
  enqueue(4, 2);
  pool.service().ChargePrompt(1, 10);
  const int64_t start = pool.NextStep();
  // The reference admits one request of each tenant, the pool two of the first.
  pool.Take(std::vector<Assignment>{{0, 0}, {1, 0}}, start + 4);
  const WorkerView worker = {.free_slots = 1, .free_kv_tokens = 1'000};
  FreeCapacity free;
  free.Reset({&worker, 1}, {});
  pool.FillTenants(pool.Window(2), free, start + 9);
  EXPECT_EQ(pool.views().views()[0].tenant, 1);
  EXPECT_EQ(pool.views().views()[0].tenant_reference_wait, 9);
  EXPECT_EQ(pool.views().views()[1].tenant_reference_wait, 0) << "it has been admitted in the reference";
}

// A tenant whose request cannot run now (lower class, too large for the free memory) keeps a low counter.
TEST(TenantService, AReturningTenantIsNotDelayedByOneThatCannotRun) {
  TenantService service;
  service.OnWaiting(1);
  service.OnWaiting(2);
  service.ChargePrompt(1, 500);
  service.SetFloor(500);
  service.OnWaiting(3);
  EXPECT_EQ(service.Served(3), 500);
}

TEST(TenantService, ARequestRemovedFromThePoolKeepsNoTenantWaiting) {
  RequestPool pool(SchedulerOptions(), nullptr);
  pool.service().ChargePrompt(1, 100);
  pool.service().ChargePrompt(2, 300);
  const auto enqueue = [&](uint32_t tenant) {
    RequestSpec spec = {.id = tenant, .tenant = tenant};
    ASSERT_TRUE(pool.Enqueue(spec).ok());
  };
  enqueue(1);
  enqueue(2);
  EXPECT_TRUE(pool.Remove(1));
  enqueue(3);
  EXPECT_EQ(pool.service().Served(3), 300) << "tenant 2 alone waits";
  EXPECT_TRUE(pool.Remove(2));
  EXPECT_TRUE(pool.Remove(3));
  pool.service().ChargePrompt(4, 400);
  enqueue(4);
  enqueue(5);
  EXPECT_EQ(pool.service().Served(5), 400);
}

TEST(TenantService, AnEmptyPoolLiftsATenantToTheLastThatLeft) {
  TenantService service;
  service.OnWaiting(1);
  service.ChargePrompt(1, 500);
  service.OnLeft(1);
  service.OnWaiting(2);
  EXPECT_EQ(service.Served(2), 500);
}

// When two tenants always have requests waiting and the less served one is served, their counters stay close.
TEST(TenantService, ServingTheLeastKeepsBackloggedTenantsWithinOneRequest) {
  Rng rng(4);
  TenantService service;
  constexpr int64_t kMost = 400;
  service.OnWaiting(1);
  service.OnWaiting(2);
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t tenant = service.Served(1) <= service.Served(2) ? 1 : 2;
    service.OnWaiting(tenant);  // the next one comes before this one goes
    service.OnLeft(tenant);
    service.ChargePrompt(tenant, 1 + static_cast<int64_t>(rng.Below(tenant == 1 ? kMost : 20)));
    ASSERT_LE(std::abs(service.Served(1) - service.Served(2)), kMost);
  }
}

// --- through the scheduler ---

class FirstFitPolicy : public Policy {
 public:
  absl::string_view name() const override { return "first_fit"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    excess.clear();
    for (const WaitingView& view : snapshot.waiting) excess[view.tenant] = view.tenant_excess_tokens;
    for (int32_t i = 0;
         i < std::min<int32_t>(snapshot.workers[0].free_slots, static_cast<int32_t>(snapshot.waiting.size()));
         ++i) {
      decision.assignments.push_back({i, 0});
    }
  }
  std::map<uint32_t, double> excess;
};

struct TenantGroup {
  explicit TenantGroup(int32_t slots) {
    auto owned = std::make_unique<FirstFitPolicy>();
    policy = owned.get();
    scheduler = std::make_unique<OneGroup>(SchedulerOptions(), std::move(owned));
    EpochMember member = {.spec = {slots, 1 << 20, true}};
    scheduler->OpenEpoch({member});
  }
  void Enqueue(RequestId id, uint32_t tenant, int64_t prefill, int64_t generated = 0, int32_t priority = 0) {
    RequestSpec spec = {.id = id,
                        .prefill_tokens = prefill,
                        .max_new_tokens = 100,
                        .priority = priority,
                        .tenant = tenant,
                        .generated_tokens = generated};
    ASSERT_TRUE(scheduler->Enqueue(spec).ok());
  }
  void Report(int64_t step, int64_t load, std::vector<RequestId> finished = {},
              std::vector<RequestId> rejected = {}) {
    StepReport report;
    report.step = report.applied_plan = step;
    report.load_tokens = load;
    report.finished = finished;
    report.rejected = rejected;
    ASSERT_TRUE(scheduler->OnReport(0, report).ok());
  }
  FirstFitPolicy* policy = nullptr;
  std::unique_ptr<OneGroup> scheduler;
};

TEST(TenantExcess, CountsPromptsWhenPlacedAndOutputsWhenMade) {
  TenantGroup f(1);
  f.Enqueue(1, 1, 200);
  f.Enqueue(2, 1, 10);
  f.Enqueue(3, 2, 10);
  f.scheduler->MakePlan();  // 1 is placed
  EXPECT_EQ(f.policy->excess[1], 0);
  f.Report(1, 200);
  f.scheduler->MakePlan();
  EXPECT_EQ(f.policy->excess[1], 200);
  EXPECT_EQ(f.policy->excess[2], 0);
  f.Report(2, 201);
  f.scheduler->MakePlan();
  f.Report(3, 202, {1});
  f.scheduler->MakePlan();
  EXPECT_EQ(f.policy->excess[1], 200 + 3 * TenantService::kOutputWeight);
}

TEST(TenantExcess, LongRequestsAreChargedBeforeTheyEnd) {
  TenantGroup f(1);
  f.Enqueue(1, 1, 1);
  f.Enqueue(2, 1, 1);
  f.Enqueue(3, 2, 1);
  f.scheduler->MakePlan();
  for (int64_t step = 1; step <= 40; ++step) {
    f.Report(step, step);
    f.scheduler->MakePlan();
  }
  EXPECT_GE(f.policy->excess[1], 1 + (40 - Residents::kSettleSteps) * TenantService::kOutputWeight);
  EXPECT_LE(f.policy->excess[1], 1 + 40 * TenantService::kOutputWeight);
}

// Tenant 9 has never been served, and its request cannot run now.
class BlockedTenantTest : public ::testing::Test {
 protected:
  BlockedTenantTest() : group_(2) {}
  // Tenant 1 has been served 190 tokens more than tenant 2; two slots are free.
  void Run() {
    group_.Enqueue(1, 1, 200);
    group_.Enqueue(2, 2, 10);
    group_.Enqueue(3, 1, 10);
    group_.Enqueue(4, 2, 10);
    group_.scheduler->MakePlan();
    group_.Report(1, 210, {1, 2});
  }
  TenantGroup group_;
};

TEST_F(BlockedTenantTest, ATenantOfALowerClassDoesNotDelayOthers) {
  Run();
  group_.Enqueue(5, 9, 10, 0, /*priority=*/-1);
  group_.scheduler->MakePlan();
  EXPECT_EQ(group_.policy->excess[2], 0);
  EXPECT_EQ(group_.policy->excess[1], 190);
  EXPECT_EQ(group_.policy->excess[9], 0);
}

TEST_F(BlockedTenantTest, ATenantWithoutMemoryDoesNotDelayOthers) {
  Run();
  group_.Enqueue(5, 9, 1 << 20);
  group_.scheduler->MakePlan();
  EXPECT_EQ(group_.policy->excess[2], 0);
  EXPECT_EQ(group_.policy->excess[1], 190);
  EXPECT_EQ(group_.policy->excess[9], 0);
}

TEST(TenantExcess, RejectionsAndReplaysCostNothing) {
  TenantGroup f(1);
  f.Enqueue(1, 1, 200);
  f.Enqueue(2, 2, 10);
  f.scheduler->MakePlan();
  f.Report(1, 0, {}, {1});
  f.scheduler->MakePlan();
  EXPECT_EQ(f.policy->excess[1], 0);
  TenantGroup replay(1);
  replay.Enqueue(1, 1, 200, 50);
  replay.Enqueue(2, 1, 10);
  replay.Enqueue(3, 2, 10);
  replay.scheduler->MakePlan();
  replay.Report(1, 200);
  replay.scheduler->MakePlan();
  EXPECT_EQ(replay.policy->excess[1], 0);
}

}  // namespace
}  // namespace bfio::core
