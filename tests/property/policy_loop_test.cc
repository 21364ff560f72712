// The contract of policy.h over time: policies that learn, driven through groups in which everything changes.
//
// Every group has its own extremes of size, slots, KV memory, prompt lengths and pace; workers drain, join
// and leave, requests are cancelled, priorities and tenants differ. A second policy object with the same
// input must make the same decisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "tests/testing/mini_group.h"
#include "tests/testing/plan_contract.h"

namespace bfio::core {
namespace {

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

std::vector<Assignment> CallPolicy(Policy& policy, const Snapshot& snapshot) {
  Decision decision;
  policy.Decide(snapshot, decision);
  return decision.assignments;
}

bool Same(const std::vector<Assignment>& a, const std::vector<Assignment>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Assignment& x, const Assignment& y) {
    return x.waiting_index == y.waiting_index && x.worker == y.worker;
  });
}

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
      const Snapshot snapshot = random.group().View();
      const std::vector<Assignment> plan = CallPolicy(*policy, snapshot), again = CallPolicy(*twin, snapshot);
      CheckContract(snapshot, plan);
      EXPECT_TRUE(Same(plan, again)) << "the twin differs";
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
        const std::vector<Assignment> plan = CallPolicy(*policy, snapshot);
        std::vector<WorkerView> workers(snapshot.workers.begin(), snapshot.workers.end());
        for (WorkerView& worker : workers) {
          worker.time_per_token *= 4;
          worker.time_offset *= 4;
          worker.prefill_weight *= 4;
        }
        snapshot.workers = workers;
        const std::vector<Assignment> again = CallPolicy(*twin, snapshot);
        differ += Same(plan, again) ? 0 : 1;
        ++decisions;
        placed += static_cast<int64_t>(random.group().Apply(plan).size());
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
