// Scheduler and admission together against workers that really run out: nobody starves, and memory holds
// where lengths are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/decide/scheduler.h"

namespace bfio::core {
namespace {

constexpr int64_t kLongest = 12, kMemory = 200;

// Workers that make a token per request and step, and take the youngest out when memory does not suffice.
class Group {
 public:
  Group(const std::string& policy, const std::string& admission, const std::string& lookahead, int64_t hold,
        uint64_t seed)
      : rng_(seed) {
    SchedulerOptions options;
    options.plan_mode = seed % 2 == 0 ? PlanMode::kLockstep : PlanMode::kPipelined;
    options.admission = *ParseKvGate(admission, 0.99);
    options.hold_after_steps = hold;
    scheduler_ = std::make_unique<Scheduler>(options, *MakePolicy(policy, {}), *MakeLookahead(lookahead));
    workers_.resize(1 + rng_.Below(3));
    std::vector<EpochMember> members(workers_.size());
    for (EpochMember& member : members) member.spec = {8, kMemory, true};
    scheduler_->OpenEpoch(members);
  }

  RequestId Arrive(int64_t prompt, int64_t output) {
    RequestSpec spec;
    spec.id = ++last_id_;
    spec.prefill_tokens = prompt;
    spec.max_new_tokens = kLongest;
    spec.predicted_output_tokens = output;
    EXPECT_TRUE(scheduler_->Enqueue(spec).ok());
    requests_[spec.id] = {spec, output, 0};
    return spec.id;
  }
  int64_t Small() { return 5 + static_cast<int64_t>(rng_.Below(30)); }
  int64_t Output() { return 1 + static_cast<int64_t>(rng_.Below(kLongest)); }

  // Plans, and a step.
  void Step() {
    ++step_;
    while (auto plan = scheduler_->MakePlan()) plans_.push_back(*std::move(plan));
    EXPECT_EQ(scheduler_->totals().policy_violations, 0);
    std::vector<std::vector<RequestId>> finished(workers_.size()), preempted(workers_.size());
    std::vector<StepReport> reports(workers_.size());
    bool idle = true;
    for (size_t g = 0; g < workers_.size(); ++g) {
      std::vector<RequestId>& running = workers_[g];
      for (const Plan& plan : plans_) {
        if (plan.apply_step != step_) continue;
        reports[g].applied_plan = step_;
        for (const Placement& placement : plan.placements) {
          if (placement.worker == static_cast<WorkerIndex>(g)) running.push_back(placement.id);
        }
      }
      if (reports[g].applied_plan == 0) reports[g].applied_plan = applied_;
      while (Load(running) > kMemory) {
        preempted[g].push_back(running.back());
        running.pop_back();
      }
      reports[g].load_tokens = Load(running);
      std::erase_if(running, [&](RequestId id) {
        Request& request = requests_.at(id);
        if (++request.made < request.output) return false;
        finished[g].push_back(id);
        return true;
      });
      idle = idle && running.empty();
    }
    for (const Plan& plan : plans_) idle = idle && (plan.apply_step <= step_ || plan.placements.empty());
    applied_ = reports[0].applied_plan;
    std::erase_if(plans_, [&](const Plan& plan) { return plan.apply_step <= step_; });
    for (size_t g = 0; g < workers_.size(); ++g) {
      reports[g].step = step_;
      reports[g].finished = finished[g];
      reports[g].preempted = preempted[g];
      reports[g].group_idle = idle;
      EXPECT_TRUE(scheduler_->OnReport(static_cast<WorkerIndex>(g), reports[g]).ok());
    }
    for (const auto& ids : preempted) {
      for (const RequestId id : ids) {
        Request& request = requests_.at(id);
        request.spec.prefill_tokens += request.made;
        request.spec.generated_tokens += request.made;
        request.spec.max_new_tokens -= request.made;
        request.output -= request.made;
        request.spec.predicted_output_tokens = request.output;
        request.made = 0;
        request.spec.priority = 1;
        scheduler_->Requeue(request.spec);
        ++preempted_;
      }
    }
  }

  bool Placed(RequestId id) const { return scheduler_->WorkerOf(id).has_value() || !scheduler_->Knows(id); }
  int64_t waiting() const { return scheduler_->waiting(); }
  int64_t preempted() const { return preempted_; }
  int64_t drift() const { return scheduler_->totals().drift_tokens; }
  Rng& rng() { return rng_; }

 private:
  struct Request {
    RequestSpec spec;
    int64_t output = 0, made = 0;
  };
  int64_t Load(const std::vector<RequestId>& running) const {
    int64_t load = 0;
    for (const RequestId id : running) load += requests_.at(id).spec.prefill_tokens + requests_.at(id).made;
    return load;
  }

  Rng rng_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::vector<RequestId>> workers_;
  std::map<RequestId, Request> requests_;
  std::vector<Plan> plans_;
  RequestId last_id_ = 0;
  int64_t step_ = 0, applied_ = 0, preempted_ = 0;
};

struct Subject {
  const char *admission, *lookahead;
};

class KvAdmission : public ::testing::TestWithParam<Subject> {};
INSTANTIATE_TEST_SUITE_P(Kinds, KvAdmission,
                         ::testing::Values(Subject{"kv_feasible", "oracle"},
                                           Subject{"kv_feasible", "max_tokens"},
                                           Subject{"kv_feasible", "survival"},
                                           Subject{"protection:alpha=0.1", "none"},
                                           Subject{"protection:alpha=0", "none"}),
                         [](const auto& param) { return absl::StrCat(param.index); });

// A request that takes a worker for itself comes into an endless stream of small ones that would fill every
// gap.
TEST_P(KvAdmission, NobodyIsPassedOverForLongerThanTheBound) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy.name, ", seed ", seed));
      const int64_t hold = seed % 3 == 0 ? 40 : 5;
      Group group(std::string(policy.name), GetParam().admission, GetParam().lookahead, hold, seed);
      const auto fill = [&] {
        while (group.waiting() < 20) group.Arrive(group.Small(), group.Output());
      };
      for (int step = 0; step < 30; ++step) {
        fill();
        group.Step();
      }
      const RequestId large = group.Arrive(kMemory - kLongest + 1, group.Output());
      // The worker it holds is empty when those it runs have ended, unless another has more room by then.
      int64_t waited = 0;
      for (; !group.Placed(large) && waited < 1000; ++waited) {
        fill();
        group.Step();
      }
      EXPECT_LE(waited, hold + 2 * kLongest + 4);
      EXPECT_EQ(group.drift(), 0);
      if (HasFailure()) return;
    }
  }
}

TEST(KvAdmissionWithKnownLengths, MemoryHoldsUnderEveryPolicyAndTakesMoreThanReservations) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    for (const char* lookahead : {"oracle", "max_tokens"}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        SCOPED_TRACE(absl::StrCat(policy.name, ", ", lookahead, ", seed ", seed));
        Group group(std::string(policy.name), "kv_feasible", lookahead, 64, seed);
        for (int step = 0; step < 150; ++step) {
          for (uint64_t n = group.rng().Below(6); n > 0; --n) group.Arrive(group.Small(), group.Output());
          group.Step();
        }
        ASSERT_EQ(group.preempted(), 0);
      }
    }
  }
}

TEST(KvAdmissionWithoutForesight, WorkersRunOutAndEverybodyEndsAllTheSame) {
  int64_t preempted = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Group group("bf_io_auto", "protection:alpha=0", "none", 64, seed);
    for (int step = 0; step < 100; ++step) {
      for (uint64_t n = group.rng().Below(6); n > 0; --n) group.Arrive(group.Small(), group.Output());
      group.Step();
    }
    for (int step = 0; step < 2000 && group.waiting() > 0; ++step) group.Step();
    EXPECT_EQ(group.waiting(), 0) << "seed " << seed;
    EXPECT_EQ(group.drift(), 0);
    preempted += group.preempted();
  }
  EXPECT_GT(preempted, 50);
}

}  // namespace
}  // namespace bfio::core
