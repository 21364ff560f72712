// Loads that do not grow as the scheduler predicts: after every report its account is the worker's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

// Two workers whose requests all grow by the same number of tokens per step.
class DriftGroup {
 public:
  static constexpr int kWorkers = 2;

  DriftGroup(PlanMode mode, uint64_t seed) : rng_(seed) {
    SchedulerOptions options;
    options.plan_mode = mode;
    scheduler_ = std::make_unique<OneGroup>(options, *MakePolicy("least_tokens", {}));
    Open();
  }

  void Open() {
    std::vector<EpochMember> members(kWorkers);
    for (int g = 0; g < kWorkers; ++g) {
      members[g].spec = {6, 1'000'000, true};
      for (const auto& [id, request] : workers_[g].running) members[g].resident.push_back({id, request.load});
      workers_[g].applied = 0;
    }
    plans_.clear();
    step_ = 0;
    for (const RequestId id : scheduler_->OpenEpoch(std::move(members))) ADD_FAILURE() << id << " was lost";
  }

  void Iterate(int64_t increment) {
    for (uint64_t n = rng_.Below(3); n > 0; --n) {
      RequestSpec spec;
      spec.id = ++last_id_;
      spec.prefill_tokens = 1 + static_cast<int64_t>(rng_.Below(500));
      spec.max_new_tokens = 1 + static_cast<int64_t>(rng_.Below(40));
      ASSERT_TRUE(scheduler_->Enqueue(spec).ok());
      specs_[spec.id] = spec;
    }
    if (last_id_ > 0 && rng_.Below(8) == 0) scheduler_->Cancel(1 + rng_.Below(last_id_));
    while (auto plan = scheduler_->MakePlan()) plans_.push_back(*std::move(plan));
    if (!scheduler_->Parked()) Step(increment);
  }

  OneGroup& scheduler() { return *scheduler_; }
  int64_t step() const { return step_; }

 private:
  struct Running {
    int64_t load = 0;
    int64_t left = 0;
  };
  struct Worker {
    std::map<RequestId, Running> running;
    int64_t applied = 0;
  };

  void Apply(int g) {
    Worker& worker = workers_[g];
    for (const Plan& plan : plans_) {
      if (plan.apply_step > step_ || plan.apply_step <= worker.applied) continue;
      for (const Drop& drop : plan.drops) {
        if (drop.worker == g) worker.running.erase(drop.id);
      }
      for (const Placement& placement : plan.placements) {
        const RequestSpec& spec = specs_.at(placement.id);
        if (placement.worker == g) worker.running[placement.id] = {spec.prefill_tokens, spec.max_new_tokens};
      }
      worker.applied = plan.apply_step;
    }
  }

  void Step(int64_t increment) {
    ++step_;
    std::vector<StepReport> reports(kWorkers);
    std::vector<std::vector<RequestId>> finished(kWorkers);
    std::vector<int64_t> left(kWorkers, 0);
    bool idle = true;
    for (int g = 0; g < kWorkers; ++g) {
      Apply(g);
      auto& running = workers_[g].running;
      for (auto it = running.begin(); it != running.end();) {
        reports[g].load_tokens += it->second.load;
        if (--it->second.left == 0) {
          finished[g].push_back(it->first);
          it = running.erase(it);
          continue;
        }
        left[g] += it->second.load;
        it->second.load += increment;
        ++it;
      }
      idle = idle && running.empty();
    }
    for (const Plan& plan : plans_) idle = idle && (plan.apply_step <= step_ || plan.placements.empty());
    for (int g = 0; g < kWorkers; ++g) {
      reports[g].step = step_;
      reports[g].applied_plan = workers_[g].applied;
      reports[g].finished = finished[g];
      reports[g].group_idle = idle;
      ASSERT_TRUE(scheduler_->OnReport(g, reports[g]).ok());
      // The predicted load of the next step: the tokens of the remaining requests, plus one token
      // each.
      const Scheduler::WorkerAccount account = scheduler_->Account(g);
      ASSERT_EQ(account.load_tokens, left[g] + account.active) << "worker " << g << ", step " << step_;
    }
  }

  Rng rng_;
  std::unique_ptr<OneGroup> scheduler_;
  std::vector<Worker> workers_{kWorkers};
  std::vector<Plan> plans_;
  std::map<RequestId, RequestSpec> specs_;
  RequestId last_id_ = 0;
  int64_t step_ = 0;
};

TEST(Drift, TheAccountIsTheWorkersAfterEveryReport) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    // Plain decode, constant loads, speculative decoding, shrinking prompts.
    for (const int64_t increment : {1, 0, 3, 7, -2}) {
      DriftGroup group(mode, static_cast<uint64_t>(increment + 10));
      for (int turn = 0; turn < 400 && !::testing::Test::HasFatalFailure(); ++turn) group.Iterate(increment);
      EXPECT_GT(group.step(), 100);
      EXPECT_EQ(group.scheduler().totals().unknown_ids, 0);
      if (increment == 1) {
        EXPECT_EQ(group.scheduler().totals().drift_tokens, 0);
      }
    }
  }
}

TEST(Drift, IncrementsMayChangeFromStepToStepAndSurviveEpochs) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    DriftGroup group(PlanMode::kLockstep, seed);
    Rng rng(seed);
    for (int turn = 0; turn < 300 && !::testing::Test::HasFatalFailure(); ++turn) {
      group.Iterate(static_cast<int64_t>(rng.Below(5)));
      if (rng.Below(40) == 0) group.Open();
    }
  }
}

}  // namespace
}  // namespace bfio::core
