// Random traffic: no worker is over-filled, every request ends, and after every report the scheduler's
// account is the worker's own, however loads grow (tests/testing/cluster_session.h has events of more kinds).
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "common/base/rng.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using bfio::testing::Request;
using bfio::testing::StepGroup;

class RandomFit : public Policy {
 public:
  explicit RandomFit(uint64_t seed) : rng_(seed) {}
  absl::string_view name() const override { return "random_fit"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    std::vector<WorkerView> workers(snapshot.workers.begin(), snapshot.workers.end());
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i) {
      const auto g = static_cast<WorkerIndex>(rng_.Below(workers.size()));
      if (workers[g].free_slots < 1 || workers[g].free_kv_tokens < snapshot.waiting[i].kv_reserve_tokens)
        continue;
      --workers[g].free_slots;
      workers[g].free_kv_tokens -= snapshot.waiting[i].kv_reserve_tokens;
      decision.assignments.push_back({i, g});
    }
  }

 private:
  Rng rng_;
};

// Loads of all requests grow by the same number of tokens in a step.
class ModelGroup : public StepGroup {
 public:
  static constexpr WorkerSpec kWorker{.slots = 3, .kv_tokens = 100};

  ModelGroup(PlanMode mode, uint64_t seed)
      : StepGroup(std::vector(1 + seed % 4, kWorker), std::make_unique<RandomFit>(seed), {.plan_mode = mode}),
        left_(workers.size()),
        rng_(seed) {}

  // `growth`: unset: another one in each step.
  void Run(std::optional<int64_t> growth) {
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) {
      growth_ = growth.value_or(static_cast<int64_t>(rng_.Below(5)));
      for (uint64_t n = i < 300 && group.waiting() < 20 ? rng_.Below(4) : 0; n > 0; --n) Arrive();
      if (i < 300 && !requests.empty() && rng_.Below(4) == 0) group.Cancel(1 + rng_.Below(requests.size()));
      if (rng_.Below(60) == 0) Open(std::vector(workers.size(), kWorker));
      Step();
    }
    EXPECT_EQ(group.waiting() + group.placed(), 0);
    EXPECT_EQ(totals().unknown_ids, 0);
    EXPECT_EQ(totals().policy_violations, 0);
    if (growth == 1) {
      EXPECT_EQ(totals().drift_tokens, 0);
    }
  }

 protected:
  void Compute(size_t g, Done& done) override {
    int64_t kv = 0;
    for (const StepGroup::Run& run : workers[g].runs) kv += run.spec.kv_reserve_tokens();
    EXPECT_LE(kv, kWorker.kv_tokens);
    EXPECT_LE(std::ssize(workers[g].runs), kWorker.slots);
    StepGroup::Compute(g, done);
    left_[g] = 0;
    for (StepGroup::Run& run : workers[g].runs) {
      left_[g] += run.load - 1;
      run.load += growth_ - 1;
    }
  }
  void OnReported(size_t g, const Done&) override {
    // The predicted load of the next step: what the remaining requests held, plus one token each.
    const auto account = Account(static_cast<WorkerIndex>(g));
    ASSERT_EQ(account.load_tokens, left_[g] + account.active) << "worker " << g << ", " << workers[g].step;
  }

 private:
  void Arrive() {
    RequestSpec spec = Request(requests.size() + 1, 1 + static_cast<int64_t>(rng_.Below(40)),
                               1 + static_cast<int64_t>(rng_.Below(8)));
    if (growth_ < 0) spec.prefill_tokens += 20;
    Enqueue(spec, 1 + static_cast<int64_t>(rng_.Below(spec.max_new_tokens)));
  }

  std::vector<int64_t> left_;
  Rng rng_;
  int64_t growth_ = 1;
};

TEST(SchedulerModel, LockstepAndPipelinedGroupsKeepTheirAccounts) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    for (uint64_t seed = 1; seed <= 200; ++seed) ModelGroup(mode, seed).Run(1);
  }
}

TEST(SchedulerModel, AccountsAreTheWorkersHoweverLoadsGrow) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      // Constant loads, speculative decoding, shrinking prompts.
      for (const int64_t growth : {0, 3, 7, -2}) ModelGroup(mode, seed).Run(growth);
      ModelGroup(mode, seed).Run(std::nullopt);
    }
  }
}

}  // namespace
}  // namespace bfio::core
