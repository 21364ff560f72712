// Every policy keeps the contract of policy.h on random snapshots.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

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
    const std::vector<Assignment> plan = instance.Call(*policy).assignments,
                                  again = instance.Call(*twin).assignments;
    CheckContract(instance.View(), plan);
    EXPECT_TRUE(std::equal(plan.begin(), plan.end(), again.begin(), again.end(),
                           [](const Assignment& a, const Assignment& b) {
                             return a.waiting_index == b.waiting_index && a.worker == b.worker;
                           }));
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

}  // namespace
}  // namespace bfio::core
