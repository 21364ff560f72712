// The contract of policy.h: every policy keeps it on random snapshots, and policies that learn keep it over
// time in groups in which everything changes. A second policy object with the same input makes the same
// decisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/mini_group.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

bool Same(const std::vector<Assignment>& a, const std::vector<Assignment>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Assignment& x, const Assignment& y) {
    return x.waiting_index == y.waiting_index && x.worker == y.worker;
  });
}

// The policy's plan, which keeps the contract and is its twin's too.
std::vector<Assignment> CheckedPlan(Policy& policy, Policy& twin, const Snapshot& snapshot) {
  Decision plan, again;
  policy.Decide(snapshot, plan);
  twin.Decide(snapshot, again);
  CheckContract(snapshot, plan.assignments);
  EXPECT_TRUE(Same(plan.assignments, again.assignments)) << "the twin differs";
  return plan.assignments;
}

// --- random snapshots ---

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
  const char* policy;
  const char* objective = "square";
  int32_t horizon = 0;
};

class PolicyProperty : public ::testing::TestWithParam<Subject> {};

TEST_P(PolicyProperty, ContractHoldsAndPlansRepeatOnRandomSnapshots) {
  PolicyOptions options;
  options.objective = GetParam().objective;
  options.horizon = GetParam().horizon;
  const auto policy = *MakePolicy(GetParam().policy, options), twin = *MakePolicy(GetParam().policy, options);
  Rng rng(91);
  for (int trial = 0; trial < kTrials; ++trial) {
    const PolicyCase instance = RandomCase(rng);
    CheckedPlan(*policy, *twin, instance.View());
    if (HasFailure()) FAIL() << "in trial " << trial;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies, PolicyProperty,
    ::testing::Values(Subject{"fcfs"}, Subject{"round_robin"}, Subject{"least_requests"},
                      Subject{"power_of_two"}, Subject{"least_tokens"}, Subject{"lpt"}, Subject{"vllm"},
                      Subject{"trtllm"}, Subject{"br0"}, Subject{"br_h"}, Subject{"br_h", "square", 3},
                      Subject{"bf_io", "square"}, Subject{"bf_io", "paper"}, Subject{"bf_io", "square", 3},
                      Subject{"bf_io", "paper", 3}, Subject{"bf_io_auto", "auto", 3}, Subject{"jffc"}),
    [](const auto& param) {
      return absl::StrCat(param.param.policy, "_", param.param.objective, "_", param.param.horizon);
    });

// --- over time ---

// Every group has its own extremes of size, slots, KV memory, prompt lengths and pace; workers drain, join
// and leave, requests are cancelled, priorities and tenants differ.
class RandomGroup {
 public:
  explicit RandomGroup(uint64_t seed) : rng_(seed), group_(Machines()) {
    constexpr int64_t kPrefills[] = {1, 900, 20'000, 1'000'000};
    longest_prefill_ = kPrefills[rng_.Below(4)];
    constant_ = rng_.Below(5) == 0;
    longest_output_ = 1 + static_cast<int64_t>(rng_.Below(rng_.Below(2) == 0 ? 4 : 80));
    pace_ = 0.2 + 3 * rng_.Uniform();
    burst_ = rng_.Below(3) == 0 ? 400 : 0;
    classes_ = rng_.Below(3) == 0 ? 3 : 1;
    tenants_ = rng_.Below(3) == 0;
    membership_ = rng_.Below(3) == 0;
    cancels_ = rng_.Below(3) == 0;
  }

  MiniGroup& group() { return group_; }

  // Random events between two decisions.
  void Happen() {
    int64_t slots = 0;
    for (int g = 0; g < workers_; ++g) slots += group_.machine(g).slots;
    double arrivals = pace_ * static_cast<double>(slots) / (0.5 * static_cast<double>(longest_output_) + 1);
    if (burst_ > 0) arrivals = rng_.Below(50) == 0 ? static_cast<double>(burst_) : 0;
    for (; group_.waiting() < 600 && arrivals > rng_.Uniform(); --arrivals) group_.Enqueue(RandomJob());
    if (cancels_ && group_.waiting() > 0 && rng_.Below(4) == 0) group_.Cancel(rng_.Below(group_.waiting()));
    if (!membership_) return;
    if (rng_.Below(20) == 0) {
      Machine& machine =
          group_.machine(static_cast<WorkerIndex>(rng_.Below(static_cast<uint64_t>(workers_))));
      machine.accepts_new = !machine.accepts_new;
    }
    if (rng_.Below(60) == 0 && workers_ > 1) group_.RemoveLastWorker(), --workers_;
    if (rng_.Below(60) == 0 && workers_ < 20) group_.AddWorker(RandomMachine()), ++workers_;
  }

 private:
  std::vector<Machine> Machines() {
    constexpr int kWorkers[] = {1, 2, 4, 9, 17};
    constexpr int32_t kSlots[] = {1, 3, 20};
    workers_ = kWorkers[rng_.Below(5)];
    slots_ = kSlots[rng_.Below(3)];
    unequal_ = rng_.Below(3) == 0;
    tight_kv_ = rng_.Below(3) == 0;
    std::vector<Machine> machines;
    for (int g = 0; g < workers_; ++g) machines.push_back(RandomMachine());
    return machines;
  }
  Machine RandomMachine() {
    Machine machine;
    machine.slots = slots_;
    if (unequal_) {
      machine.slots = static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(2 * slots_)));
      machine.time_per_token = 0.1 + 5 * rng_.Uniform();
      machine.time_offset = 1'000 * rng_.Uniform();
      machine.prefill_weight = rng_.Below(2) == 0 ? 30 * rng_.Uniform() : 0;
    }
    // From less than a request to a few of them.
    if (tight_kv_) machine.kv_tokens = 1 + static_cast<int64_t>(rng_.Below(5'000));
    return machine;
  }
  Job RandomJob() {
    Job job;
    job.prefill = constant_ ? longest_prefill_
                            : 1 + static_cast<int64_t>(static_cast<double>(longest_prefill_) *
                                                       rng_.Uniform() * rng_.Uniform() * rng_.Uniform());
    job.output = constant_ ? longest_output_ : 1 + static_cast<int64_t>(rng_.Below(longest_output_));
    job.priority = static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(classes_)));
    if (tight_kv_) job.kv_tokens = 1 + static_cast<int64_t>(rng_.Below(3'000));
    if (tenants_ && rng_.Below(2) == 0) job.tenant_excess = 1e6 * rng_.Uniform() * rng_.Uniform();
    return job;
  }

  Rng rng_;
  int workers_ = 1;
  int32_t slots_ = 1;
  bool unequal_ = false, tight_kv_ = false;
  MiniGroup group_;
  int64_t longest_prefill_ = 1, longest_output_ = 1, burst_ = 0;
  double pace_ = 1;
  int classes_ = 1;
  bool constant_ = false, tenants_ = false, membership_ = false, cancels_ = false;
};

class PolicyLoop : public ::testing::TestWithParam<const char*> {};

TEST_P(PolicyLoop, ContractHoldsAndDecisionsRepeatWhileTheGroupChanges) {
  constexpr uint64_t kGroups = 60;
  constexpr int kSteps = 300;
  int64_t placed = 0;
  for (uint64_t seed = 1; seed <= kGroups; ++seed) {
    RandomGroup random(seed);
    const auto policy = *MakePolicy(GetParam(), {}), twin = *MakePolicy(GetParam(), {});
    for (int step = 0; step < kSteps; ++step) {
      random.Happen();
      const std::vector<Assignment> plan = CheckedPlan(*policy, *twin, random.group().View());
      if (HasFailure()) FAIL() << "seed " << seed << ", step " << step;
      placed += static_cast<int64_t>(random.group().Apply(plan).size());
    }
  }
  EXPECT_GT(placed, 20'000) << "the groups have something to do";
}

// Only ratios of times matter: in another unit of time (a quarter) plans are the same, except for choices
// between requests whose weights differ only by rounding.
TEST(PolicyUnits, PlansDoNotDependOnTheUnitOfTime) {
  int64_t placed = 0, decisions = 0, differ = 0;
  for (const char* name : {"bf_io_auto", "bf_io", "lpt"}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      RandomGroup random(seed);
      const auto policy = *MakePolicy(name, {}), twin = *MakePolicy(name, {});
      for (int step = 0; step < 200; ++step) {
        random.Happen();
        Snapshot snapshot = random.group().View();
        Decision plan, again;
        policy->Decide(snapshot, plan);
        std::vector<WorkerView> workers(snapshot.workers.begin(), snapshot.workers.end());
        for (WorkerView& worker : workers) {
          worker.time_per_token *= 4;
          worker.time_offset *= 4;
          worker.prefill_weight *= 4;
        }
        snapshot.workers = workers;
        twin->Decide(snapshot, again);
        differ += Same(plan.assignments, again.assignments) ? 0 : 1;
        ++decisions;
        placed += static_cast<int64_t>(random.group().Apply(plan.assignments).size());
      }
    }
  }
  EXPECT_LE(differ, decisions / 100);
  EXPECT_GT(placed, 10'000) << "the groups have something to do";
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyLoop, ::testing::Values("bf_io_auto", "bf_io", "fcfs", "lpt"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace bfio::core
