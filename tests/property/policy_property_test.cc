// The contract of policy.h: every policy keeps it on random snapshots, and policies that learn keep it over
// time in groups in which everything changes. A second policy object with the same input makes the same
// decisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using bfio::testing::Request;

bool Same(const std::vector<Assignment>& a, const std::vector<Assignment>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Assignment& x, const Assignment& y) {
    return x.waiting_index == y.waiting_index && x.worker == y.worker;
  });
}

// A policy whose plans keep the contract, and its twin, to which each snapshot is shown in another unit of
// time.
class Twins : public Policy {
 public:
  explicit Twins(absl::string_view name, const PolicyOptions& options = {}, double unit = 1)
      : first_(*MakePolicy(name, options)), second_(*MakePolicy(name, options)), unit_(unit) {}

  absl::string_view name() const override { return first_->name(); }
  int32_t horizon() const override { return first_->horizon(); }
  absl::Span<const PlacementRule> placement_rules() const override { return first_->placement_rules(); }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    std::vector<WorkerView> workers(snapshot.workers.begin(), snapshot.workers.end());
    for (WorkerView& worker : workers) {
      worker.time_per_token *= unit_;
      worker.time_offset *= unit_;
    }
    Snapshot shown = snapshot;
    shown.workers = workers;
    Decision again;
    first_->Decide(snapshot, decision);
    second_->Decide(shown, again);
    CheckContract(snapshot, decision.assignments);
    ++decisions;
    placed += std::ssize(decision.assignments);
    differ += Same(decision.assignments, again.assignments) ? 0 : 1;
  }

  int64_t decisions = 0, placed = 0, differ = 0;

 private:
  const std::unique_ptr<Policy> first_, second_;
  const double unit_;
};

constexpr int kTrials = 20'000;

// KV capacity and needs at future times; capacity may be negative, because reservations may exceed it.
void AddKv(Rng& rng, PolicyCase& to) {
  const int32_t times = 1 + static_cast<int32_t>(rng.Below(4)), ways = 1 + static_cast<int32_t>(rng.Below(2));
  const Snapshot view = to.View();
  std::vector<int64_t> capacity, need;
  for (size_t g = 0; g < view.workers.size(); ++g) {
    for (int32_t i = 0; i < times * ways; ++i)
      capacity.push_back(static_cast<int64_t>(rng.Below(8'000)) - 500);
  }
  for (const WaitingView& request : view.waiting) {
    for (int32_t i = 0; i < times * ways; ++i) {
      need.push_back(rng.Below(5) == 0 ? 0 : request.prefill_tokens + static_cast<int64_t>(rng.Below(300)));
    }
  }
  to.Kv(times, ways, capacity, need);
}

PolicyCase RandomCaseByReservation(Rng& rng) {
  PolicyCase result;
  const bool tight_kv = rng.Below(2) == 0, priorities = rng.Below(3) == 0;
  const int workers = 1 + static_cast<int>(rng.Below(6)), waiting = static_cast<int>(rng.Below(13));
  for (int g = 0; g < workers; ++g) {
    const int64_t kv = tight_kv ? static_cast<int64_t>(rng.Below(2'000)) : kAmpleKv;
    result.Worker(static_cast<int64_t>(rng.Below(100'000)), static_cast<int32_t>(rng.Below(5)), kv,
                  static_cast<int32_t>(rng.Below(72)));
    if (tight_kv && rng.Below(3) == 0) result.MaxSequence(static_cast<int64_t>(rng.Below(1'200)));
  }
  const int32_t horizon = static_cast<int32_t>(rng.Below(2) * (1 + rng.Below(4)));
  int64_t age = static_cast<int64_t>(rng.Below(200));
  int32_t priority = 2;
  for (int i = 0; i < waiting; ++i) {
    // Pool order: priorities descend, and within one priority the ages.
    if (priorities && rng.Below(4) == 0 && priority > 0) {
      --priority;
      age = static_cast<int64_t>(rng.Below(200));
    }
    age -= static_cast<int64_t>(rng.Below(static_cast<uint64_t>(age) / 4 + 1));
    const int64_t prefill = 1 + static_cast<int64_t>(rng.Below(rng.Below(5) == 0 ? 14'000 : 900));
    result.Waiting(prefill, age, 1 + static_cast<int64_t>(rng.Below(1'000)), priorities ? priority : 0)
        .Curve(static_cast<int32_t>(rng.Below(2)) * (horizon > 0 ? 1 : 0));
  }
  if (horizon == 0) return result;
  std::vector<double> load, curves;
  for (int row = 0; row < 2; ++row) {
    curves.push_back(1);
    for (int h = 1; h <= horizon; ++h) curves.push_back(curves.back() * rng.Uniform());
  }
  for (const WorkerView& worker : result.View().workers) {
    for (int h = 0; h <= horizon; ++h) {
      load.push_back(static_cast<double>(worker.load_tokens) * (h == 0 ? 1 : rng.Uniform()));
    }
  }
  return result.Ahead(horizon, load, curves);
}

// A random snapshot: half of them with KV limits that bind, a third with priorities, a third with admission
// that looks ahead.
PolicyCase RandomCase(Rng& rng) {
  PolicyCase result = RandomCaseByReservation(rng);
  if (rng.Below(3) == 0) AddKv(rng, result);
  return result;
}

struct Subject {
  absl::string_view policy;
  const char* objective = "square";
  int32_t horizon = 0;
};

class PolicyProperty : public ::testing::TestWithParam<Subject> {};

TEST_P(PolicyProperty, ContractHoldsAndPlansRepeatOnRandomSnapshots) {
  PolicyOptions options;
  options.objective = GetParam().objective;
  options.horizon = GetParam().horizon;
  Twins twins(GetParam().policy, options);
  Rng rng(91);
  for (int trial = 0; trial < kTrials; ++trial) {
    const PolicyCase instance = RandomCase(rng);
    Decision decision;
    twins.Decide(instance.View(), decision);
    if (HasFailure() || twins.differ > 0) FAIL() << "in trial " << trial;
  }
}

// All registered policies but least_work, which may let requests wait for a prefix.
std::vector<Subject> Subjects() {
  std::vector<Subject> all = {{"bf_io_auto", "auto", 3},
                              {"br_h", "square", 3},
                              {"bf_io", "paper"},
                              {"bf_io", "square", 3},
                              {"bf_io", "paper", 3}};
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    if (policy.name != "least_work") all.push_back({policy.name});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyProperty, ::testing::ValuesIn(Subjects()), [](const auto& param) {
  return absl::StrCat(param.param.policy, "_", param.param.objective, "_", param.param.horizon);
});

// Every group has its own extremes of size, slots, KV memory, prompt lengths and pace; workers drain, join
// and leave, requests are cancelled, priorities and tenants differ.
class RandomGroup : public bfio::testing::StepGroup {
 public:
  RandomGroup(uint64_t seed, std::unique_ptr<Policy> policy) : StepGroup({}, std::move(policy)), rng_(seed) {
    constexpr int kWorkers[] = {1, 2, 4, 9, 17};
    constexpr int32_t kSlots[] = {1, 3, 20};
    constexpr int64_t kPrefills[] = {900, 1, 20'000, 1'000'000};
    const int count = kWorkers[rng_.Below(5)];
    slots_ = kSlots[rng_.Below(3)];
    unequal_ = OneIn(3);
    tight_kv_ = OneIn(3);
    longest_prefill_ = kPrefills[rng_.Below(tight_kv_ ? 2 : 4)];
    constant_ = OneIn(5);
    longest_output_ = Some(OneIn(2) ? 4 : 80);
    pace_ = 0.2 + 3 * rng_.Uniform();
    burst_ = OneIn(3) ? 400 : 0;
    classes_ = OneIn(3) ? 3 : 1;
    tenants_ = OneIn(3) ? 3 : 1;
    membership_ = OneIn(3);
    cancels_ = OneIn(3);
    for (int g = 0; g < count; ++g) specs_.push_back(RandomWorker());
    Open(specs_);
  }

  // Random events, a decision and a step.
  void Live() {
    int64_t slots = 0;
    for (const WorkerSpec& spec : specs_) slots += spec.slots;
    double arrivals = pace_ * static_cast<double>(slots) / (0.5 * static_cast<double>(longest_output_) + 1);
    if (burst_ > 0) arrivals = OneIn(50) ? static_cast<double>(burst_) : 0;
    for (; group.waiting() < 600 && arrivals > rng_.Uniform(); --arrivals) Arrive();
    if (cancels_ && !requests.empty() && OneIn(4))
      group.Cancel(requests.size() - rng_.Below(std::min<size_t>(requests.size(), 600)));
    if (membership_) Change();
    Step();
  }

 private:
  bool OneIn(uint64_t n) { return rng_.Below(n) == 0; }
  int64_t Some(int64_t most) { return 1 + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(most))); }
  WorkerSpec RandomWorker() {
    WorkerSpec spec = {.slots = slots_, .kv_tokens = kAmpleKv};
    if (unequal_) {
      spec.slots = static_cast<int32_t>(Some(2 * slots_));
      spec.time_per_token = 0.1 + 5 * rng_.Uniform();
      spec.time_offset = 1'000 * rng_.Uniform();
    }
    // From less than a request to a few of them.
    if (tight_kv_) spec.kv_tokens = Some(3 * longest_prefill_);
    return spec;
  }
  void Arrive() {
    RequestSpec spec = {.id = requests.size() + 1};
    const double part = constant_ ? 1 : rng_.Uniform() * rng_.Uniform() * rng_.Uniform();
    spec.prefill_tokens = std::max<int64_t>(1, static_cast<int64_t>(part * double(longest_prefill_)));
    spec.max_new_tokens = constant_ ? longest_output_ : Some(longest_output_);
    spec.priority = static_cast<int32_t>(rng_.Below(classes_));
    spec.tenant = static_cast<uint32_t>(rng_.Below(tenants_));
    Enqueue(spec);
  }
  void Change() {
    const size_t g = rng_.Below(specs_.size());
    if (OneIn(20)) {
      specs_[g].accepts_new = !specs_[g].accepts_new;
      group.SetAcceptsNew(static_cast<WorkerIndex>(g), specs_[g].accepts_new);
    }
    const size_t before = specs_.size();
    if (OneIn(60) && before > 1) specs_.pop_back();
    if (OneIn(60) && before < 20) specs_.push_back(RandomWorker());
    if (specs_.size() != before) Open(specs_);
  }

  Rng rng_;
  std::vector<WorkerSpec> specs_;
  int32_t slots_ = 1;
  int64_t longest_prefill_ = 1, longest_output_ = 1, burst_ = 0;
  double pace_ = 1;
  uint64_t classes_ = 1, tenants_ = 1;
  bool unequal_ = false, tight_kv_ = false, constant_ = false, membership_ = false, cancels_ = false;
};

struct Counts {
  int64_t decisions = 0, placed = 0, differ = 0;
};

// Groups under a policy and its twin.
Counts Live(const char* policy, double unit, uint64_t groups, int steps) {
  Counts counts;
  for (uint64_t seed = 1; seed <= groups && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
    auto owned = std::make_unique<Twins>(policy, PolicyOptions(), unit);
    const Twins& twins = *owned;
    RandomGroup group(seed, std::move(owned));
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) group.Live();
    counts.decisions += twins.decisions, counts.placed += twins.placed, counts.differ += twins.differ;
    EXPECT_EQ(group.totals().policy_violations, 0);
  }
  return counts;
}

class PolicyLoop : public ::testing::TestWithParam<const char*> {};

TEST_P(PolicyLoop, ContractHoldsAndDecisionsRepeatWhileTheGroupChanges) {
  const Counts counts = Live(GetParam(), 1, 60, 300);
  EXPECT_EQ(counts.differ, 0);
  EXPECT_GT(counts.placed, 20'000) << "the groups have something to do";
}

// Only ratios of times matter: in another unit of time (a quarter) plans are the same, except for choices
// between requests whose weights differ only by rounding.
TEST(PolicyUnits, PlansDoNotDependOnTheUnitOfTime) {
  for (const char* name : {"bf_io_auto", "bf_io", "lpt"}) {
    const Counts counts = Live(name, 4, 20, 200);
    EXPECT_LE(counts.differ, counts.decisions / 100) << name;
    EXPECT_GT(counts.placed, 3'000) << "the groups have something to do";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyLoop, ::testing::Values("bf_io_auto", "bf_io", "fcfs", "lpt"),
                         [](const auto& param) { return std::string(param.param); });

// --- tenants' shares ---

// Shares of two tenants under bf_io_auto while both have requests waiting all the time: what each is served
// grows at the same rate, whatever their requests are like.

constexpr int kWorkers = 4;

// A tenant keeps `waiting` requests waiting; prompts are uniform in 1 .. 2 `prompt` and outputs in
// 1 .. 2 `output`.
struct Tenant {
  int waiting = 0;
  int64_t prompt = 0, output = 0;
};

class Shared : public bfio::testing::StepGroup {
 public:
  Shared(uint64_t seed, std::vector<Tenant> tenants)
      : StepGroup(std::vector(kWorkers, WorkerSpec{.slots = 16, .kv_tokens = 100'000'000}),
                  *MakePolicy("bf_io_auto", {})),
        rng_(seed),
        tenants_(std::move(tenants)),
        waiting_(tenants_.size()) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      for (uint32_t t = 0; t < tenants_.size(); ++t) {
        for (; waiting_[t] < tenants_[t].waiting; ++waiting_[t]) {
          RequestSpec spec = Request(requests.size() + 1, Draw(tenants_[t].prompt), 1 << 20);
          spec.tenant = t;
          Enqueue(spec, Draw(tenants_[t].output));
        }
      }
      Step();
    }
  }
  double Served(uint32_t tenant) const { return group.cluster().pool().service().Served(tenant); }

 private:
  void OnPlan(const core::Plan& plan) override {
    for (const Placement& placement : plan.placements) --waiting_[requests.at(placement.id).spec.tenant];
  }
  int64_t Draw(int64_t mean) { return 1 + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(2 * mean))); }

  Rng rng_;
  const std::vector<Tenant> tenants_;
  std::vector<int> waiting_;
};

void ExpectEqualShares(const std::vector<Tenant>& tenants) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    Shared group(seed, tenants);
    // At first the free slots go to any request.
    group.Run(1'000);
    const double before[] = {group.Served(0), group.Served(1)};
    group.Run(8'000);
    EXPECT_NEAR((group.Served(0) - before[0]) / (group.Served(1) - before[1]), 1, 0.08) << "seed " << seed;
  }
}

TEST(TenantShares, AreEqualWhenOneHasManyMoreWaiting) {
  ExpectEqualShares({{200, 300, 50}, {8, 300, 50}});
}

TEST(TenantShares, AreEqualWhenOneHasThousandsOfLikeRequests) {
  Shared group(1, {{3'000, 1, 50}, {8, 1, 50}});
  group.Run(200);
  const double before[] = {group.Served(0), group.Served(1)};
  group.Run(800);
  EXPECT_NEAR((group.Served(0) - before[0]) / (group.Served(1) - before[1]), 1, 0.08);
}

TEST(TenantShares, AreEqualForShortAndLongPrompts) {
  ExpectEqualShares({{40, 3'000, 50}, {40, 50, 50}});
}

// Fewer than 1 % of the admissions are the first tenant's, so that the 99th percentile of waits in fair order
// is of the second one's, and far below the waits that the first one must have.
TEST(TenantShares, AreEqualForATenantOfFewLargeRequests) {
  ExpectEqualShares({{40, 4'000, 5}, {40, 20, 5}});
}

}  // namespace
}  // namespace bfio::core
