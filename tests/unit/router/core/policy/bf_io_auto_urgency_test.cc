// Urgency under bf_io_auto: lateness, the cost of waiting, overdue requests, classes and tenants.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/bf_io_auto/urgency.h"
#include "router/core/scheduler/virtual_fcfs.h"

namespace bfio::core {
namespace {

// A pool of 200 from which a first-come rule would admit 20 per step: P = 9 steps, overdue after 1.9 P.
constexpr int64_t kPool = 200, kAdmitted = 20, kP = 9;
constexpr double kDue = 1.9 * kP;

class UrgencyTest : public ::testing::Test {
 protected:
  UrgencyTest() : workers_(4), waiting_(kPool), ages_(kPool, 5) {
    for (int64_t i = 0; i < kPool; ++i) waiting_[i].id = static_cast<RequestId>(i + 1);
    for (WorkerView& worker : workers_) worker.load_tokens = 10'000;
    scale_ = {1'000, 100};
    for (WaitingView& request : waiting_) request.prefill_tokens = 1'000;
    ages_[50] = kP;  // the longest wait under a first-come rule
  }

  Snapshot View() {
    for (int64_t i = 0; i < kPool; ++i) waiting_[i].enqueued_step = step_ - ages_[i];
    Snapshot snapshot = {.step = step_, .workers = workers_, .waiting = waiting_};
    class_wait_ = {0, first_come_.p99(), first_come_.long_run_p99()};
    snapshot.first_come = absl::MakeConstSpan(&class_wait_, 1);
    return snapshot;
  }
  void Observe() {
    ++step_;
    urgency_.Observe(View());
  }
  // Admits the pool's last requests, and adds others of their age, until P is 9; then observes the pool.
  void Settle(int decisions = 50, int64_t admitted = kAdmitted) {
    for (int i = 0; i < decisions; ++i) {
      Observe();
      std::vector<int32_t> plan;
      for (int64_t k = kPool - admitted; k < kPool; ++k) plan.push_back(static_cast<int32_t>(k));
      Admit(plan);
    }
    Observe();
  }
  void Admit(std::vector<int32_t> waiting_indices) {
    std::vector<Assignment> plan;
    for (int32_t i : waiting_indices) plan.push_back({i, 0});
    const Snapshot snapshot = View();
    urgency_.Learn(snapshot, plan);
    while (first_come_.size() < kPool) first_come_.Arrive(step_);
    first_come_.Decide(step_, static_cast<int64_t>(plan.size()));
  }
  // The program of four workers and the pool's items.
  Instance Program() {
    Instance instance;
    instance.workers.resize(4);
    for (WorkerView& worker : instance.workers) worker.load_tokens = 10'000, worker.free_slots = 5;
    for (const WaitingView& request : waiting_) {
      instance.items.emplace_back();
      instance.items.back().load = request.prefill_tokens;
    }
    return instance;
  }
  Instance Weights() {
    Instance instance = Program();
    urgency_.SetWeights(View(), scale_, instance);
    return instance;
  }
  // The age beyond which a request is late, derived from its weight.
  double Late() {
    const double age = static_cast<double>(ages_[0]);
    const double per_unit = (Weights().items[0].weight - 200 * age) / (urgency_.price() * 1e4);
    const double late = age / std::sqrt(per_unit);
    EXPECT_NEAR(late, kP, 1e-9);
    return late;
  }
  UrgencyTracker urgency_{/*wait_ratio=*/1};
  ClassWait class_wait_;
  VirtualFcfs first_come_;
  PoolScale scale_;
  int64_t step_ = 1'000;
  std::vector<WorkerView> workers_;
  std::vector<WaitingView> waiting_;
  std::vector<int64_t> ages_;
};

TEST_F(UrgencyTest, OverdueAt1Point9TimesTheP99WaitOfAFirstComeRule) {
  ages_[3] = 16, ages_[4] = 17, ages_[5] = 40;
  Settle();
  EXPECT_DOUBLE_EQ(urgency_.slacks()[0], kDue - 5);
  EXPECT_NEAR(urgency_.slacks()[3], 1.1, 1e-9);
  EXPECT_NEAR(urgency_.slacks()[4], 0.1, 1e-9);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[5], kDue - 40);
  // The fifth request would be overdue at the next decision.
  const Instance instance = Weights();
  const auto unforced = [&](double age) {
    return 200 * age + urgency_.price() * 1e4 * std::pow(age / kP, 2);
  };
  EXPECT_NEAR(instance.items[3].weight, unforced(16), 1);
  EXPECT_GT(instance.items[4].weight, unforced(17) + 1e7);
}

TEST_F(UrgencyTest, AdmissionsCountAndNotSlotsWhereKvBinds) {
  ages_[50] = 25;
  Settle(200, kAdmitted / 2);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[0], 1.9 * 19 - 5);
}

TEST_F(UrgencyTest, WeightIsPriceTimesScaleSquaredTimesLatenessSquared) {
  ages_[1] = 0, ages_[2] = 12;
  Settle();
  const Instance instance = Weights();
  const double late = Late();
  for (int i : {0, 1, 2}) {
    const double age = static_cast<double>(ages_[i]), lateness = age / late;
    EXPECT_NEAR(instance.items[i].weight, 200 * age + urgency_.price() * 1e4 * lateness * lateness, 1e-6);
  }
}

TEST_F(UrgencyTest, PriceRisesWithALateAdmissionAndFallsWithOneInTime) {
  Settle();
  const int64_t last_in_time = static_cast<int64_t>(Late() + 1e-9);
  ages_[7] = last_in_time, ages_[8] = last_in_time + 1;
  const double start = urgency_.price();
  Admit({7});
  EXPECT_NEAR(std::log(urgency_.price() / start), 0.05 * -0.008, 1e-12);
  Admit({8});
  EXPECT_NEAR(std::log(urgency_.price() / start), 0.05 * (1 - 2 * 0.008), 1e-12);
}

TEST_F(UrgencyTest, PriceStaysWhereNoRequestIsPassedOver) {
  ages_[8] = 30;
  Settle();
  urgency_.Observe(View());
  std::vector<int32_t> everybody(kPool);
  std::iota(everybody.begin(), everybody.end(), 0);
  const double price = urgency_.price();
  Admit(everybody);
  EXPECT_EQ(urgency_.price(), price);
}

TEST_F(UrgencyTest, PriceKeepsToItsBounds) {
  Settle(2'000);
  EXPECT_DOUBLE_EQ(urgency_.price(), 0.01);
  ages_[0] = 12;
  for (int i = 0; i < 200; ++i) {
    Observe();
    Admit(std::vector<int32_t>(kAdmitted, 0));
  }
  EXPECT_DOUBLE_EQ(urgency_.price(), 1'000);
}

// The higher the cost of waiting, the fewer requests are late: at a cost of 50 it is 0.8 % here.
TEST_F(UrgencyTest, PriceReachesTheTargetShareOfLateRequests) {
  Rng rng(11);
  for (int64_t i = 0; i < kAdmitted; ++i) ages_[i] = 12;  // late, not due
  Settle();
  double late = 0, all = 0;
  for (int decision = 0; decision < 4'000; ++decision) {
    std::vector<int32_t> plan;
    for (int32_t i = 0; i < kAdmitted; ++i) {
      const bool is_late = rng.Uniform() < 0.4 / urgency_.price();
      plan.push_back(is_late ? i : i + 100);
      if (decision >= 500) late += is_late, all += 1;
    }
    Observe();
    Admit(plan);
  }
  EXPECT_NEAR(late / all, 0.008, 0.0003);
  EXPECT_NEAR(std::log(urgency_.price()), std::log(50), 0.7);
}

// --- oversized requests ---

TEST_F(UrgencyTest, OverdueOneWaitsForASlotOfItsReservedWorkerForAQuarterOfP) {
  waiting_[0].prefill_tokens = 9'000;
  Settle(200);
  const auto forced = [&](int64_t age, int32_t slots) {
    ages_[0] = age;
    Observe();
    Instance instance = Program();
    instance.items[0].reserved_worker = 2;
    instance.workers[2].free_slots = slots;
    urgency_.SetWeights(View(), scale_, instance);
    return instance.items[0].weight > 1e8;
  };
  EXPECT_FALSE(forced(16, 1));
  EXPECT_TRUE(forced(17, 1));
  EXPECT_FALSE(forced(17, 0));
  EXPECT_FALSE(forced(18, 0));
  EXPECT_TRUE(forced(19, 0)) << "2.25 steps";
}

// --- classes and the ratio ---

// In a low class that waits long behind a high one, requests are late by their own class's reference waits.
TEST_F(UrgencyTest, ClassesAreLateByTheirOwnReferenceWaits) {
  const ClassWait waits[] = {{1, 9, 9}, {0, 200, 200}};
  waiting_[0].priority = waiting_[1].priority = 1;
  ages_[0] = 20, ages_[1] = 5, ages_[2] = 20, ages_[3] = 401;
  Snapshot snapshot = View();
  snapshot.first_come = waits;
  urgency_.Observe(snapshot);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[0], kDue - 20);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[1], kDue - 5);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[2], 1.9 * 200 - 20);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[3], 1.9 * 200 - 401);
  const double price = urgency_.price();
  urgency_.Learn(snapshot, std::vector<Assignment>{{2, 0}});
  EXPECT_LT(urgency_.price(), price) << "20 steps are not late in the low class";
  urgency_.Learn(snapshot, std::vector<Assignment>{{0, 0}});
  EXPECT_GT(urgency_.price(), price) << "and are in the high one";
}

TEST_F(UrgencyTest, LateIsJudgedByTheLongRunAndOverdueByTheRecentWait) {
  const ClassWait waits[] = {{0, 9, 30}};
  ages_[0] = 30, ages_[1] = 31;
  Snapshot snapshot = View();
  snapshot.first_come = waits;
  urgency_.Observe(snapshot);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[0], kDue - 30) << "a burst that is over keeps none waiting";
  const double price = urgency_.price();
  urgency_.Learn(snapshot, std::vector<Assignment>{{0, 0}});
  EXPECT_LT(urgency_.price(), price);
  urgency_.Learn(snapshot, std::vector<Assignment>{{1, 0}});
  EXPECT_GT(urgency_.price(), price);
}

TEST_F(UrgencyTest, WaitRatioStretchesEveryLimit) {
  const ClassWait waits[] = {{0, 9, 9}};
  UrgencyTracker relaxed(/*wait_ratio=*/3);
  ages_[0] = 27, ages_[1] = 28;
  Snapshot snapshot = View();
  snapshot.first_come = waits;
  relaxed.Observe(snapshot);
  EXPECT_DOUBLE_EQ(relaxed.slacks()[0], 1.9 * 27 - 27);
  const double start = relaxed.price();
  relaxed.Learn(snapshot, std::vector<Assignment>{{0, 0}});
  EXPECT_LT(relaxed.price(), start);
  relaxed.Learn(snapshot, std::vector<Assignment>{{1, 0}});
  EXPECT_GT(relaxed.price(), start);
}

// --- tenants ---

TEST_F(UrgencyTest, TenantThatIsAheadCountsAsYoungerByWhatItIsAhead) {
  waiting_[1].tenant_excess_tokens = 10'000;  // one worker's mean load: one `late`
  waiting_[2].tenant_excess_tokens = 25'000;
  ages_[0] = ages_[1] = ages_[2] = 12;
  Settle();
  const Instance instance = Weights();
  EXPECT_GT(instance.items[0].weight, instance.items[1].weight);
  EXPECT_GT(instance.items[1].weight, instance.items[2].weight) << "far ahead has a negative weight";
  EXPECT_LT(instance.items[2].weight, 0);
}

// The lead itself has no bound: it grows while a request of the other tenant waits for a gap.
TEST_F(UrgencyTest, ATenantsLeadDelaysTheLimitUpToItsFairWait) {
  ages_[0] = ages_[1] = ages_[2] = ages_[3] = 12;
  waiting_[1].tenant_excess_tokens = waiting_[2].tenant_excess_tokens = 1e9;
  waiting_[3].tenant_excess_tokens = 10'000;
  Settle();
  const auto p99 = first_come_.p99();
  waiting_[1].tenant_reference_wait = p99;
  waiting_[2].tenant_reference_wait = p99 + 7;
  waiting_[3].tenant_reference_wait = p99 + 1'000;
  Observe();
  EXPECT_DOUBLE_EQ(urgency_.slacks()[0], kDue - 12);
  EXPECT_DOUBLE_EQ(urgency_.slacks()[1], kDue - 12)
      << "fair order lets its tenant wait no longer than others";
  EXPECT_DOUBLE_EQ(urgency_.slacks()[2], kDue - 12 + 7);
  EXPECT_NEAR(urgency_.slacks()[3], kDue - 12 + Late(), 1e-6) << "no more than its lead";
}

// The reference serves tenants in fair order, so its limit applies to waits that include a tenant's lead.
TEST_F(UrgencyTest, RequestIsLateByItsOwnWaitWhateverItsTenantsLead) {
  const ClassWait waits[] = {{0, 9, 9}};
  ages_[0] = 10;
  waiting_[0].tenant_excess_tokens = 25'000;
  Snapshot snapshot = View();
  snapshot.first_come = waits;
  urgency_.Observe(snapshot);
  const double price = urgency_.price();
  urgency_.Learn(snapshot, std::vector<Assignment>{{0, 0}});
  EXPECT_GT(urgency_.price(), price);
}

TEST_F(UrgencyTest, OverdueRequestIsForcedHoweverFarItsTenantIsAhead) {
  waiting_[1].tenant_excess_tokens = 1e9;
  Settle();
  const auto due = static_cast<int64_t>(std::ceil(kDue)) - 1;
  ages_[1] = due - 1;
  Observe();
  EXPECT_GT(urgency_.slacks()[1], 1);
  EXPECT_LT(Weights().items[1].weight, 0);
  ages_[1] = due;
  Observe();
  EXPECT_LE(urgency_.slacks()[1], 1);
  EXPECT_GT(Weights().items[1].weight, 4 * std::pow(2 * 1'000, 2)) << "forced";
}

}  // namespace
}  // namespace bfio::core
