// Every policy keeps the contract of policy.h on random snapshots.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/policy/room.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

constexpr int kTrials = 20'000;

// A snapshot; half of them with KV that binds, a third with priorities.
PolicyCase RandomCase(Rng& rng) {
  PolicyCase result;
  const bool tight_kv = rng.Below(2) == 0, priorities = rng.Below(3) == 0;
  const int workers = 1 + static_cast<int>(rng.Below(6)), waiting = static_cast<int>(rng.Below(13));
  for (int g = 0; g < workers; ++g) {
    const int64_t kv = tight_kv ? static_cast<int64_t>(rng.Below(2'000)) : kAmpleKv;
    result.Worker(static_cast<int64_t>(rng.Below(100'000)), static_cast<int32_t>(rng.Below(5)), kv,
                  static_cast<int32_t>(rng.Below(72)));
  }
  int64_t age = static_cast<int64_t>(rng.Below(200));
  int32_t priority = 2;
  for (int i = 0; i < waiting; ++i) {
    // Pool order: priorities fall, and within one the ages.
    if (priorities && rng.Below(4) == 0 && priority > 0) {
      --priority;
      age = static_cast<int64_t>(rng.Below(200));
    }
    age -= static_cast<int64_t>(rng.Below(static_cast<uint64_t>(age) / 4 + 1));
    const int64_t prefill = 1 + static_cast<int64_t>(rng.Below(rng.Below(5) == 0 ? 14'000 : 900));
    result.Waiting(prefill, age, 1 + static_cast<int64_t>(rng.Below(1'000)), priorities ? priority : 0);
  }
  const int32_t horizon = static_cast<int32_t>(rng.Below(2) * (1 + rng.Below(4)));
  if (horizon == 0) return result;
  std::vector<double> load, curve(1, 1);
  for (int h = 1; h <= horizon; ++h) curve.push_back(curve.back() * rng.Uniform());
  for (const WorkerView& worker : result.View().workers) {
    for (int h = 0; h <= horizon; ++h) {
      load.push_back(static_cast<double>(worker.load_tokens) * (h == 0 ? 1 : rng.Uniform()));
    }
  }
  return result.Ahead(horizon, load, curve);
}

bool FitsSomewhere(const std::vector<WorkerView>& workers, const WaitingView& request) {
  return std::any_of(workers.begin(), workers.end(), [&](const WorkerView& worker) {
    return worker.free_slots > 0 && request.kv_reserve_tokens <= worker.free_kv_tokens;
  });
}

// What is left of the workers; fails when the plan breaks a cap or names a request twice.
std::vector<WorkerView> Apply(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  std::vector<WorkerView> left(snapshot.workers.begin(), snapshot.workers.end());
  std::vector<char> seen(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) {
    EXPECT_EQ(seen.at(assignment.waiting_index)++, 0) << "request assigned twice";
    WorkerView& worker = left.at(assignment.worker);
    EXPECT_GE(--worker.free_slots, 0) << "slots exceeded";
    worker.free_kv_tokens -= snapshot.waiting[assignment.waiting_index].kv_reserve_tokens;
    EXPECT_GE(worker.free_kv_tokens, 0) << "KV exceeded";
  }
  return left;
}

// Closes the worker an overdue request holds, by the words of room.h.
void CloseHeld(const Snapshot& snapshot, std::vector<WorkerView>& left) {
  const std::vector<WorkerView> before(snapshot.workers.begin(), snapshot.workers.end());
  const bool hold =
      std::any_of(snapshot.waiting.begin(), snapshot.waiting.end(), [&](const WaitingView& request) {
        return snapshot.step - request.enqueued_step >= kHoldAfterSteps && !FitsSomewhere(before, request);
      });
  int held = -1;
  for (size_t g = 0; g < before.size(); ++g) {
    if (before[g].free_slots == 0) continue;
    if (held < 0 || before[g].free_kv_tokens > before[held].free_kv_tokens) held = static_cast<int>(g);
  }
  if (hold && held >= 0) left[held].free_slots = 0;
}

void CheckContract(const Snapshot& snapshot, const std::vector<Assignment>& plan) {
  std::vector<WorkerView> left = Apply(snapshot, plan);
  CloseHeld(snapshot, left);
  std::vector<char> placed(snapshot.waiting.size(), 0);
  for (const Assignment& assignment : plan) placed[assignment.waiting_index] = 1;
  int64_t slots = 0, most_kv = 0;
  for (const WorkerView& worker : snapshot.workers) slots += worker.free_slots;
  for (const WaitingView& request : snapshot.waiting) most_kv += request.kv_reserve_tokens;
  const bool kv_binds =
      std::any_of(snapshot.workers.begin(), snapshot.workers.end(),
                  [&](const WorkerView& worker) { return worker.free_kv_tokens < most_kv; });
  if (!kv_binds) {
    EXPECT_EQ(static_cast<int64_t>(plan.size()), std::min<int64_t>(slots, snapshot.waiting.size()));
    int32_t lowest_in = 1 << 20, highest_out = -1;
    for (size_t i = 0; i < placed.size(); ++i) {
      const int32_t priority = snapshot.waiting[i].priority;
      if (placed[i]) lowest_in = std::min(lowest_in, priority);
      if (!placed[i]) highest_out = std::max(highest_out, priority);
    }
    EXPECT_GE(lowest_in, highest_out) << "a lower class went first";
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    EXPECT_TRUE(placed[i] || !FitsSomewhere(left, snapshot.waiting[i]))
        << "request " << i << " could still start";
  }
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
    std::vector<Assignment> plan, again;
    policy->Decide(instance.View(), plan);
    twin->Decide(instance.View(), again);
    CheckContract(instance.View(), plan);
    EXPECT_TRUE(std::equal(plan.begin(), plan.end(), again.begin(), again.end(),
                           [](const Assignment& a, const Assignment& b) {
                             return a.waiting_index == b.waiting_index && a.worker == b.worker;
                           }));
    if (HasFailure()) FAIL() << "in trial " << trial;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyProperty,
                         ::testing::Values(Subject{"fcfs"}, Subject{"fcfs_fill"}, Subject{"round_robin"},
                                           Subject{"least_requests"}, Subject{"power_of_two"},
                                           Subject{"power_of_d"}, Subject{"least_tokens"}, Subject{"lpt"},
                                           Subject{"min_min"}, Subject{"max_min"}, Subject{"throttled"},
                                           Subject{"vllm"}, Subject{"trtllm"}, Subject{"br0"},
                                           Subject{"br_h"}, Subject{"br_h", "square", 3},
                                           Subject{"bf_io", "square"}, Subject{"bf_io", "paper"}),
                         [](const auto& param) {
                           return absl::StrCat(param.param.policy, "_", param.param.objective, "_",
                                               param.param.horizon);
                         });

}  // namespace
}  // namespace bfio::core
