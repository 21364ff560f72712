// Urgency under bf_io_auto: lateness, the cost of waiting, overdue requests, classes and tenants.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/bf_io_auto/bf_io_auto.h"
#include "router/core/scheduler/virtual_fcfs.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

// A pool of 200 from which a first-come rule would admit 20 per step: P = 9 steps, overdue after 1.9 P.
constexpr int64_t kPool = 200, kAdmitted = 20, kP = 9;
constexpr double kDue = 1.9 * kP;

class UrgencyTest : public ::testing::Test {
 protected:
  UrgencyTest() : workers_(4), waiting_(kPool), ages_(kPool, 5) {
    for (WorkerView& worker : workers_) worker.load_tokens = 10'000;
    for (WaitingView& request : waiting_) request.prefill_tokens = 1'000;
    ages_[50] = kP;  // the longest wait under a first-come rule
  }

  // With these waits of a first-come rule instead of the present ones, if there are any.
  Snapshot View(const std::vector<ClassWait>& waits = {}) {
    for (int64_t i = 0; i < kPool; ++i) waiting_[i].enqueued_step = step_ - ages_[i];
    waits_ = waits;
    if (waits.empty()) waits_.push_back({0, first_come_.p99(), first_come_.long_run_p99()});
    return {.step = step_, .workers = workers_, .waiting = waiting_, .first_come = waits_};
  }
  void Observe() {
    ++step_;
    urgency_.Observe(View());
  }
  // Admits the pool's last requests, and adds others of their age, until P is 9; then observes the pool.
  void Settle(int decisions = 50) {
    std::vector<int32_t> plan(kAdmitted);
    std::iota(plan.begin(), plan.end(), static_cast<int32_t>(kPool - kAdmitted));
    for (int i = 0; i < decisions; ++i) {
      Observe();
      Admit(plan);
    }
    Observe();
  }
  void Admit(const std::vector<int32_t>& waiting_indices) {
    std::vector<Assignment> plan;
    for (const int32_t i : waiting_indices) plan.push_back({i, 0});
    urgency_.Learn(View(), plan);
    while (first_come_.size() < kPool) first_come_.Arrive(step_);
    first_come_.Decide(step_, static_cast<int64_t>(plan.size()));
  }
  // The program of four workers and the pool's items.
  Instance Program() {
    Instance instance;
    instance.workers = workers_;
    for (WorkerView& worker : instance.workers) worker.free_slots = 5;
    for (const WaitingView& request : waiting_) instance.items.push_back({.load = request.prefill_tokens});
    return instance;
  }
  Instance Weights(Instance instance) {
    urgency_.SetWeights(View(), {1'000, 100}, instance);
    return instance;
  }
  Instance Weights() { return Weights(Program()); }
  // The weight of a request of this age that is not overdue.
  double Unforced(double age) const { return 200 * age + urgency_.price() * 1e4 * std::pow(age / kP, 2); }
  double slack(size_t i) const { return urgency_.slacks()[i]; }
  // Whether the admission of this request counts as a late one.
  static bool Late(UrgencyTracker& urgency, const Snapshot& snapshot, int32_t i) {
    const double price = urgency.price();
    urgency.Learn(snapshot, std::vector<Assignment>{{i, 0}});
    EXPECT_NE(urgency.price(), price);
    return urgency.price() > price;
  }

  UrgencyTracker urgency_{/*wait_ratio=*/1};
  std::vector<ClassWait> waits_;
  VirtualFcfs first_come_;
  int64_t step_ = 1'000;
  std::vector<WorkerView> workers_;
  std::vector<WaitingView> waiting_;
  std::vector<int64_t> ages_;
};

TEST_F(UrgencyTest, OverdueAt1Point9TimesTheP99WaitOfAFirstComeRule) {
  ages_[1] = 0, ages_[2] = 12, ages_[3] = 16, ages_[4] = 17, ages_[5] = 40;
  Settle();
  const Instance instance = Weights();
  for (const size_t i : {0, 1, 2, 3, 4, 5}) {
    const auto age = static_cast<double>(ages_[i]);
    EXPECT_NEAR(slack(i), kDue - age, 1e-9);
    // The fifth request would be overdue at the next decision.
    if (i < 4) {
      EXPECT_NEAR(instance.items[i].weight, Unforced(age), 1e-6);
    } else {
      EXPECT_GT(instance.items[i].weight, Unforced(age) + 1e7);
    }
  }
}

TEST_F(UrgencyTest, PriceRisesWithALateAdmissionAndFallsWithOneInTime) {
  ages_[7] = kP, ages_[8] = kP + 1;
  Settle();
  const double start = urgency_.price();
  Admit({7});
  EXPECT_NEAR(std::log(urgency_.price() / start), 0.05 * -0.008, 1e-12);
  Admit({8});
  EXPECT_NEAR(std::log(urgency_.price() / start), 0.05 * (1 - 2 * 0.008), 1e-12);
  std::vector<int32_t> everybody(kPool);
  std::iota(everybody.begin(), everybody.end(), 0);
  const double price = urgency_.price();
  Admit(everybody);
  EXPECT_EQ(urgency_.price(), price) << "where no request is passed over it stays";
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

TEST_F(UrgencyTest, OverdueOneWaitsForASlotOfItsReservedWorkerForAQuarterOfP) {
  waiting_[0].prefill_tokens = 9'000;
  Settle(200);
  const auto forced = [&](int64_t age, int32_t slots) {
    ages_[0] = age;
    Observe();
    Instance instance = Program();
    instance.items[0].reserved_worker = 2;
    instance.workers[2].free_slots = slots;
    return Weights(instance).items[0].weight > 1e8;
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
  waiting_[0].priority = waiting_[1].priority = 1;
  ages_[0] = 20, ages_[1] = 5, ages_[2] = 20, ages_[3] = 401;
  const Snapshot snapshot = View({{1, 9, 9}, {0, 200, 200}});
  urgency_.Observe(snapshot);
  for (const size_t i : {0, 1, 2, 3})
    EXPECT_DOUBLE_EQ(slack(i), (i < 2 ? kDue : 1.9 * 200) - static_cast<double>(ages_[i]));
  EXPECT_FALSE(Late(urgency_, snapshot, 2)) << "20 steps in the low class";
  EXPECT_TRUE(Late(urgency_, snapshot, 0)) << "20 steps in the high one";
}

TEST_F(UrgencyTest, WaitRatioStretchesEveryLimit) {
  UrgencyTracker relaxed(/*wait_ratio=*/3);
  ages_[0] = 27, ages_[1] = 28;
  const Snapshot snapshot = View({{0, 9, 9}});
  relaxed.Observe(snapshot);
  EXPECT_DOUBLE_EQ(relaxed.slacks()[0], 1.9 * 27 - 27);
  EXPECT_FALSE(Late(relaxed, snapshot, 0));
  EXPECT_TRUE(Late(relaxed, snapshot, 1));
}

// --- tenants ---

TEST_F(UrgencyTest, TenantThatIsAheadCountsAsYoungerByWhatItIsAhead) {
  waiting_[1].tenant_excess_tokens = 10'000;  // one worker's mean load: one P
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
  const struct {
    double excess;
    // Of the tenant's next request, beyond P.
    int64_t waits;
    double delay;
  } kRows[] = {{0, 0, 0}, {1e9, 0, 0}, {1e9, 7, 7}, {10'000, 1'000, kP}};
  for (size_t i = 0; i < 4; ++i) {
    ages_[i] = 12;
    waiting_[i].tenant_excess_tokens = kRows[i].excess;
    waiting_[i].tenant_reference_wait = kP + kRows[i].waits;
  }
  urgency_.Observe(View({{0, kP, kP}}));
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(slack(i), kDue - 12 + kRows[i].delay, 1e-6) << i;
}

// --- force ---

TEST(BfIoAutoForceTest, WeightOfAnOverdueRequestExceedsAnyGainInBalance) {
  // Five requests wait, one of them for long; none has been admitted yet, so P is 0.
  const std::vector<WorkerView> views(3);
  std::vector<WaitingView> waiting(5);
  for (WaitingView& request : waiting) request.enqueued_step = 101;
  waiting[0].enqueued_step = 98;
  const Snapshot snapshot = {.step = 100, .workers = views, .waiting = waiting};
  UrgencyTracker urgencies(/*wait_ratio=*/1);
  urgencies.Observe(snapshot);
  ASSERT_LE(urgencies.slacks()[0], 0);
  ASSERT_GT(urgencies.slacks()[1], 0);
  Rng rng(23);
  int unforced_out = 0;
  for (int trial = 0; trial < 3'000; ++trial) {
    Instance instance;
    double time = 0, mean = 0;
    const bool unequal = rng.Below(2) == 0;
    const int64_t base = rng.Below(2) == 0 ? 0 : static_cast<int64_t>(rng.Below(100'000));
    const double rate = unequal ? 0.5 + 8 * rng.Uniform() : 1;
    for (int g = 0; g < 3; ++g) {
      WorkerView& worker = instance.workers.emplace_back();
      worker.load_tokens =
          base + static_cast<int64_t>(rng.Below(1 + rng.Below(rng.Below(2) == 0 ? 20'000 : 200)));
      worker.free_slots = static_cast<int32_t>(g == 0 || rng.Below(2));
      worker.free_kv_tokens = int64_t{1} << 40;
      worker.time_per_token = rate * (unequal ? 0.7 + 0.6 * rng.Uniform() : 1);
      time += worker.TimeAt(static_cast<double>(worker.load_tokens)) / 3;
    }
    for (int i = 0; i < 5; ++i) {
      instance.items.push_back(
          {.load = 1 + static_cast<int64_t>(rng.Below(rng.Below(3) == 0 ? 20'000 : 500))});
      mean += static_cast<double>(instance.items.back().load) / 5;
    }
    instance.target_load = time + static_cast<double>(instance.Target()) * mean * instance.MeanRate() / 3;
    const auto first_enters = [&] {
      return SolveExhaustively(instance, {.objective = ObjectiveKind::kSquare}).solution.worker_of[0] !=
             kUnassigned;
    };
    unforced_out += first_enters() ? 0 : 1;
    urgencies.SetWeights(snapshot, {1'000, 100}, instance);
    ASSERT_TRUE(first_enters()) << "trial " << trial;
  }
  EXPECT_GT(unforced_out, 500) << "force has something to do";
}

}  // namespace
}  // namespace bfio::core
