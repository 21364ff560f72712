// Scheduler and admission with workers that can run out of memory: no request starves, and memory suffices
// when lengths are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/admission/admission_text.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr int64_t kLongest = 12, kMemory = 200;

// Workers that generate a token per request and step, and preempt the youngest when memory is short.
class Group {
 public:
  Group(const std::string& policy, const std::string& admission, const std::string& lookahead, int64_t hold,
        uint64_t seed, double watermark = 0)
      : rng_(seed), watermark_(watermark) {
    SchedulerOptions options = {.plan_mode = seed % 2 == 0 ? PlanMode::kLockstep : PlanMode::kPipelined};
    const AdmissionSetting setting = *ParseAdmission(admission);
    options.admission = setting.kv;
    options.wait = setting.wait;
    options.hold_after_steps = hold;
    scheduler_ = std::make_unique<OneGroup>(options, *MakePolicy(policy, {}), *MakeLookahead(lookahead));
    workers_.resize(1 + rng_.Below(3));
    std::vector<EpochMember> members(workers_.size());
    for (EpochMember& member : members) member.spec = {8, kMemory, true};
    scheduler_->OpenEpoch(members);
  }

  RequestId Arrive(int64_t prompt, int64_t output) {
    RequestSpec spec = {.id = ++last_id_,
                        .prefill_tokens = prompt,
                        .max_new_tokens = kLongest,
                        .predicted_output_tokens = Predicted(output)};
    EXPECT_TRUE(scheduler_->Enqueue(spec).ok());
    requests_[spec.id] = {spec, output, 0};
    return spec.id;
  }
  // From now on predicted lengths are too short by this factor.
  void Understate(int64_t times) { understated_ = times; }
  // From now on actual lengths are within this relative error of the predicted ones.
  void Mislead(double error) { error_ = error; }
  // From now on plans arrive up to this many steps late.
  void DelayPlans(int64_t most) { most_late_ = most; }
  int64_t Small() { return 5 + static_cast<int64_t>(rng_.Below(30)); }
  int64_t Output() { return 1 + static_cast<int64_t>(rng_.Below(kLongest)); }

  // Makes plans and runs a step.
  void Step() {
    ++step_;
    while (auto plan = scheduler_->MakePlan()) plans_.push_back(*std::move(plan));
    EXPECT_EQ(scheduler_->totals().policy_violations, 0);
    std::vector<std::vector<RequestId>> finished(workers_.size()), preempted(workers_.size()),
        rejected(workers_.size());
    std::vector<StepReport> reports(workers_.size());
    bool idle = true;
    late_ = late_ < most_late_ && rng_.Below(4) == 0 ? late_ + 1 : 0;
    const auto here = [&](const Plan& plan) { return plan.apply_step <= step_ && late_ == 0; };
    for (size_t g = 0; g < workers_.size(); ++g) {
      std::vector<RequestId>& running = workers_[g];
      for (const Plan& plan : plans_) {
        if (!here(plan)) continue;
        reports[g].applied_plan = plan.apply_step;
        for (const Placement& placement : plan.placements) {
          if (placement.worker != static_cast<WorkerIndex>(g)) continue;
          (Begin(g, placement.id) ? running : rejected[g]).push_back(placement.id);
        }
      }
      if (reports[g].applied_plan == 0) reports[g].applied_plan = applied_;
      while (Held(running) > kMemory) {
        const auto youngest = std::find_if(running.rbegin(), running.rend(), [&](RequestId id) {
          return !requests_.at(id).spec.reserves_kv();
        });
        ASSERT_NE(youngest, running.rend());
        preempted[g].push_back(*youngest);
        running.erase(std::next(youngest).base());
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
    for (const Plan& plan : plans_) idle = idle && (here(plan) || plan.placements.empty());
    applied_ = reports[0].applied_plan;
    std::erase_if(plans_, here);
    for (size_t g = 0; g < workers_.size(); ++g) {
      reports[g].step = step_;
      reports[g].finished = finished[g];
      reports[g].preempted = preempted[g];
      reports[g].rejected = rejected[g];
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
        request.spec.predicted_output_tokens = Predicted(request.output);
        request.made = 0;
        request.spec.priority = 1;
        request.spec.refusals = 0;
        scheduler_->Requeue(request.spec);
        ++request.preempted;
        ++preempted_;
      }
    }
  }

  bool Placed(RequestId id) const { return scheduler_->WorkerOf(id).has_value() || !scheduler_->Knows(id); }
  bool Ended(RequestId id) const { return !scheduler_->Knows(id); }
  int64_t waiting() const { return scheduler_->waiting(); }
  int64_t preempted() const { return preempted_; }
  int64_t preempted(RequestId id) const { return requests_.at(id).preempted; }
  int32_t refusals(RequestId id) const { return requests_.at(id).spec.refusals; }
  int64_t drift() const { return scheduler_->totals().drift_tokens; }
  Rng& rng() { return rng_; }

 private:
  struct Request {
    RequestSpec spec;
    int64_t output = 0, made = 0, preempted = 0;
  };
  int64_t Predicted(int64_t output) {
    if (error_ == 0) return std::max<int64_t>(1, output / understated_);
    const double factor = 1 / (1 + error_ * (2 * rng_.Uniform() - 1));
    const auto predicted = static_cast<int64_t>(std::round(static_cast<double>(output) * factor));
    // Rounding may move the prediction out of the interval.
    const auto length = static_cast<double>(output), said = static_cast<double>(predicted);
    return std::abs(length - said) > error_ * said ? output : predicted;
  }
  // Whether the worker accepts a request that is placed on it.
  bool Begin(size_t g, RequestId id) {
    Request& request = requests_.at(id);
    const int64_t free = kMemory - Held(workers_[g]);
    const int64_t wanted =
        request.spec.reserves_kv() ? request.spec.kv_reserve_tokens() : request.spec.prefill_tokens;
    const bool exempt = request.spec.reserves_kv() || workers_[g].empty();
    const double kept = exempt ? 0 : watermark_ * kMemory;
    if (static_cast<double>(free - wanted) >= kept) return true;
    ++request.spec.refusals;
    return false;
  }
  // Tokens that the requests hold, reservations included.
  int64_t Held(const std::vector<RequestId>& running) const {
    int64_t held = 0;
    for (const RequestId id : running) {
      const Request& request = requests_.at(id);
      held += request.spec.reserves_kv() ? request.spec.kv_reserve_tokens()
                                         : request.spec.prefill_tokens + request.made;
    }
    return held;
  }
  int64_t Load(const std::vector<RequestId>& running) const {
    int64_t load = 0;
    for (const RequestId id : running) load += requests_.at(id).spec.prefill_tokens + requests_.at(id).made;
    return load;
  }

  Rng rng_;
  std::unique_ptr<OneGroup> scheduler_;
  std::vector<std::vector<RequestId>> workers_;
  std::map<RequestId, Request> requests_;
  std::vector<Plan> plans_;
  RequestId last_id_ = 0;
  int64_t step_ = 0, applied_ = 0, preempted_ = 0, understated_ = 1, most_late_ = 0, late_ = 0;
  double error_ = 0;
  // Share of memory that a worker keeps free.
  const double watermark_;
};

// For a while more requests arrive than fit; all of them end.
int64_t PreemptedInABusyHour(Group& group) {
  for (int step = 0; step < 100; ++step) {
    for (uint64_t n = group.rng().Below(6); n > 0; --n) group.Arrive(group.Small(), group.Output());
    group.Step();
  }
  for (int step = 0; step < 2000 && group.waiting() > 0; ++step) group.Step();
  EXPECT_EQ(group.waiting(), 0);
  EXPECT_EQ(group.drift(), 0);
  return group.preempted();
}

struct Subject {
  const char *admission, *lookahead;
};

class KvAdmission : public ::testing::TestWithParam<Subject> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, KvAdmission,
    ::testing::Values(Subject{"kv_feasible", "oracle"}, Subject{"mc_sf", "oracle"},
                      Subject{"mc_sf:most=20", "max_tokens"}, Subject{"mc_sf", "survival"},
                      Subject{"mc_sf:error=0.25", "oracle"}, Subject{"kv_feasible", "max_tokens"},
                      Subject{"kv_feasible", "survival"}, Subject{"protection:alpha=0.1", "none"},
                      Subject{"protection:alpha=0", "none"},
                      Subject{"protection:alpha=0+nested_wait:most=8", "none"},
                      Subject{"kv_feasible+wait:most=8", "oracle"}),
    [](const auto& param) { return absl::StrCat(param.index); });

// A request that needs a whole worker arrives in an endless stream of small ones that would fill every
// gap.
TEST_P(KvAdmission, NoRequestIsPassedOverForLongerThanTheBound) {
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
      // The worker held for it is empty when its requests have ended; another may have room earlier.
      int64_t waited = 0;
      for (; !group.Placed(large) && waited < 1000; ++waited) {
        fill();
        group.Step();
      }
      // WAIT delays a request by at most most=8 steps.
      EXPECT_LE(waited, hold + 2 * kLongest + 4);
      EXPECT_EQ(group.drift(), 0);
      if (HasFailure()) return;
    }
  }
}

constexpr Subject kKnown[] = {{"kv_feasible", "oracle"},
                              {"kv_feasible", "max_tokens"},
                              {"mc_sf", "oracle"},
                              {"mc_sf:error=0.25", "oracle"},
                              {"mc_sf:most=10", "max_tokens"}};

TEST(KvAdmissionWithKnownLengths, MemoryHoldsUnderEveryPolicy) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    for (const Subject& known : kKnown) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        SCOPED_TRACE(
            absl::StrCat(policy.name, ", ", known.admission, ", ", known.lookahead, ", seed ", seed));
        Group group(std::string(policy.name), known.admission, known.lookahead, 64, seed);
        for (int step = 0; step < 150; ++step) {
          for (uint64_t n = group.rng().Below(6); n > 0; --n) group.Arrive(group.Small(), group.Output());
          group.Step();
        }
        ASSERT_EQ(group.preempted(), 0);
      }
    }
  }
}

// Predictions within a relative error of the lengths: their upper ends keep every worker within its memory,
// and the predictions themselves do not.
TEST(KvAdmissionWithErrors, UpperEndsKeepMemoryWherePredictionsThemselvesDoNot) {
  int64_t by_predictions = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    for (const char* admission : {"mc_sf:error=0.5", "mc_sf"}) {
      Group group("bf_io_auto", admission, "oracle", 64, seed);
      group.Mislead(0.5);
      const int64_t preempted = PreemptedInABusyHour(group);
      if (absl::string_view(admission) == "mc_sf") {
        by_predictions += preempted;
      } else {
        EXPECT_EQ(preempted, 0);
      }
    }
  }
  EXPECT_GT(by_predictions, 20);
}

// When a plan arrives late, its requests run later than the plan states.
TEST(KvAdmissionWithKnownLengths, MemorySufficesWhenPlansAreLate) {
  for (const Subject& known : kKnown) {
    for (uint64_t seed = 1; seed <= 601; seed += 2) {  // pipelined
      SCOPED_TRACE(absl::StrCat(known.admission, ", ", known.lookahead, ", seed ", seed));
      Group group("bf_io_auto", known.admission, known.lookahead, 64, seed);
      group.DelayPlans(2);
      EXPECT_EQ(PreemptedInABusyHour(group), 0);
    }
  }
}

// Lengths predicted too short: memory is overcommitted at times, workers preempt, and all requests end.
TEST(KvAdmissionWithKnownLengths, PredictionsThatAreOutlivedAreMendedByPreemption) {
  for (const char* admission : {"kv_feasible", "mc_sf"}) {
    int64_t preempted = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Group group("bf_io_auto", admission, "oracle", 64, seed);
      group.Understate(4);
      preempted += PreemptedInABusyHour(group);
    }
    EXPECT_GT(preempted, 20) << admission;
  }
}

// A long request that fits arrives in an endless stream of short ones.
TEST(McSfAdmission, ALongRequestIsPassedOverUntilTheBoundAndNoLonger) {
  const auto waited = [](const std::string& admission, uint64_t seed) {
    Group group("fcfs", admission, "oracle", 1'000, seed);
    RequestId last = 0;
    const auto fill = [&] {
      while (group.waiting() < 40) last = group.Arrive(group.Small(), 1 + kLongest / 8);
    };
    for (int step = 0; step < 30; ++step) {
      fill();
      group.Step();
    }
    const RequestId longest = group.Arrive(group.Small(), kLongest);
    int64_t steps = 0;
    for (; !group.Placed(longest) && steps < 300; ++steps) {
      fill();
      group.Step();
    }
    EXPECT_EQ(group.preempted(), 0);
    return steps;
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_GE(waited("mc_sf:most=100000", seed), 200) << "as in the paper";
    // From then on it starts as soon as it fits a worker, after those that arrived before it.
    EXPECT_GE(waited("mc_sf:most=60", seed), 59);
    EXPECT_LE(waited("mc_sf:most=60", seed), 60 + 2 * kLongest);
  }
}

// One worker of 4 slots and 1,000 tokens, driven step by step.
class OneWorkerGroup {
 public:
  explicit OneWorkerGroup(const std::string& admission, const std::string& lookahead = "none",
                          int64_t slots = 4, int64_t kv_tokens = 1000) {
    SchedulerOptions options;
    const AdmissionSetting setting = *ParseAdmission(admission);
    options.admission = setting.kv;
    options.wait = setting.wait;
    options.max_waiting = 6;
    options.hold_after_steps = 20;
    scheduler = std::make_unique<OneGroup>(options, *MakePolicy("fcfs", {}), *MakeLookahead(lookahead));
    scheduler->OpenEpoch({{{static_cast<int32_t>(slots), kv_tokens, true}, {}, {}}});
  }
  static RequestSpec Spec(RequestId id, int64_t prompt = 10, int64_t most = 100, uint32_t tenant = 0) {
    return {.id = id, .prefill_tokens = prompt, .max_new_tokens = most, .tenant = tenant};
  }
  // The placements of the plan that is due now.
  std::vector<Placement> Plan() {
    const auto plan = scheduler->MakePlan();
    if (plan) applied = plan->apply_step;
    return plan ? plan->placements : std::vector<Placement>();
  }
  void Report(int64_t load, std::vector<RequestId> preempted = {}, std::vector<RequestId> finished = {},
              bool idle = false) {
    StepReport report;
    report.step = ++step;
    report.applied_plan = applied;
    report.load_tokens = load;
    report.preempted = preempted;
    report.finished = finished;
    report.group_idle = idle;
    report.shared_kv_tokens = shared;
    ASSERT_TRUE(scheduler->OnReport(0, report).ok());
  }

  std::unique_ptr<OneGroup> scheduler;
  int64_t step = 0, applied = 0, shared = 0;
};

TEST(WaitInTheScheduler, AnIdleGroupTakesAllAndABusyOneWaitsUpToTheBound) {
  for (const char* admission : {"wait:most=5", "nested_wait:most=5", "kv_feasible+wait:most=5"}) {
    OneWorkerGroup group(admission, "max_tokens", 4, 1 << 20);
    ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(1)).ok());
    EXPECT_EQ(group.scheduler->waiting(), 1);
    ASSERT_EQ(group.Plan().size(), 1U) << "an idle group does not wait for others to come";
    group.Report(10);
    for (RequestId id = 2; id <= 4; ++id)
      ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(id)).ok());
    // They arrive in time for the plan of step 2, and must be placed by that of step 7.
    while (group.scheduler->waiting() > 0 && group.step < 7) {
      group.Plan();
      group.Report(10 + group.step);
    }
    EXPECT_EQ(group.scheduler->waiting(), 0);
    // Nested WAIT has observed no end yet, so it delays no request.
    EXPECT_EQ(group.scheduler->totals().held_back > 0, !absl::StartsWith(admission, "nested")) << admission;
  }
}

TEST(WaitInTheScheduler, ARequestThatHasBegunDoesNotWaitForABatch) {
  OneWorkerGroup group("wait:most=1000,tokens=1000000", "none");
  ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(1)).ok());
  group.Plan();
  RequestSpec begun = OneWorkerGroup::Spec(2);
  begun.generated_tokens = 1;
  ASSERT_TRUE(group.scheduler->Enqueue(begun).ok());
  ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(3)).ok());
  ASSERT_EQ(group.scheduler->waiting(), 2);
  EXPECT_EQ(group.scheduler->cluster().pool().wait_admission().size(), 1);
  EXPECT_TRUE(group.scheduler->cluster().pool().wait_admission().Contains(3));
}

TEST(WaitInTheScheduler, AHeldRequestCountsAndCanBeCancelled) {
  // The fixed part of a step is so long that a few arrivals per step give a threshold of several requests.
  const std::string admission = "wait:most=1000,tokens=1000000";
  OneWorkerGroup group(admission, "none", 100, 1 << 20);
  OneGroup& scheduler = *group.scheduler;
  ASSERT_TRUE(scheduler.Enqueue(OneWorkerGroup::Spec(1)).ok());
  RequestId id = 1;
  const auto turn = [&] {
    std::vector<RequestId> ended;
    for (const Placement& placement : group.Plan()) {
      if (placement.id != 1) ended.push_back(placement.id);
    }
    group.Report(10 + group.step + 10 * static_cast<int64_t>(ended.size()), {}, ended);
    for (int n = 0; n < 2; ++n) ASSERT_TRUE(scheduler.Enqueue(OneWorkerGroup::Spec(++id)).ok());
  };
  for (int i = 0; i < 700; ++i) turn();
  // Two requests are below the threshold and wait for two more.
  if (scheduler.waiting() == 4) turn();
  ASSERT_EQ(scheduler.waiting(), 2);
  EXPECT_EQ(scheduler.Enqueue(OneWorkerGroup::Spec(id)).code(), absl::StatusCode::kAlreadyExists);
  for (int n = 0; n < 4; ++n) EXPECT_TRUE(scheduler.Enqueue(OneWorkerGroup::Spec(++id)).ok());
  EXPECT_EQ(scheduler.Enqueue(OneWorkerGroup::Spec(id + 1)).code(), absl::StatusCode::kResourceExhausted);

  EXPECT_EQ(scheduler.waiting(), 6);
  EXPECT_EQ(scheduler.cluster().pool().wait_admission().size(), 6);
  EXPECT_EQ(scheduler.Cancel(id), CancelOutcome::kDequeued);
  EXPECT_EQ(scheduler.waiting(), 5);
  EXPECT_FALSE(scheduler.Knows(id));
  EXPECT_EQ(scheduler.Cancel(id), CancelOutcome::kUnknown);
}

TEST(SharedKv, MakesRoomUnderEveryRule) {
  for (const char* admission : {"none", "kv_feasible", "mc_sf", "protection:alpha=0"}) {
    SCOPED_TRACE(admission);
    OneWorkerGroup group(admission, "max_tokens");
    for (RequestId id = 1; id <= 4; ++id)
      ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(id, 400, 50)).ok());
    ASSERT_EQ(group.Plan().size(), 2U) << "of 1,000 tokens";
    group.Report(800);
    group.Report(802);
    EXPECT_TRUE(group.Plan().empty());
    group.shared = 399;
    group.Report(804);
    ASSERT_EQ(group.Plan().size(), 1U) << "two of the three share 399 of 400 tokens";
    group.shared = 0;
    group.Report(1206);
    EXPECT_TRUE(group.Plan().empty());
  }
}

TEST(PreemptedRequest, KeepsItsAgeAndPaysItsPromptOnce) {
  OneWorkerGroup group("protection:alpha=0");
  for (RequestId id = 1; id <= 2; ++id)
    ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(id, 400, 600, 7)).ok());
  ASSERT_EQ(group.Plan().size(), 2U);
  group.Report(800);
  const double paid = group.scheduler->cluster().pool().service().Served(7);
  EXPECT_EQ(paid, 800 * TenantService::kPromptWeight);
  // It is preempted before its first token, after 30 steps in the pool.
  group.Report(401, {2});
  RequestSpec spec = OneWorkerGroup::Spec(2, 400, 600, 7);
  spec.waited_steps = 30;
  group.scheduler->Requeue(spec);
  const absl::Span<const WaitingView> views = group.scheduler->cluster().pool().views().views();
  ASSERT_EQ(views.size(), 1U);
  EXPECT_EQ(group.scheduler->NextStep() - views[0].enqueued_step, 30);
  group.Report(402, {}, {1});
  for (int i = 0; i < 3 && group.scheduler->waiting() > 0; ++i) {
    for (const Placement& placement : group.Plan()) {
      EXPECT_EQ(placement.id, 2U);
      EXPECT_GE(placement.wait_steps, 30);
    }
    if (group.scheduler->waiting() > 0) group.Report(0, {}, {}, true);
  }
  EXPECT_EQ(group.scheduler->waiting(), 0);
  const double later = group.scheduler->cluster().pool().service().Served(7);
  EXPECT_LT(later - paid, 100) << "some tokens, but no prompt";
}

// A preempted request has already waited, so when it fits nowhere it holds a worker at once, not after
// another `hold` steps.
TEST(PreemptedRequest, HoldsAWorkerByTheAgeItHas) {
  for (const bool aged : {false, true}) {
    OneWorkerGroup group("protection:alpha=0");
    ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(1, 500, 400)).ok());
    group.Plan();
    group.Report(500);
    RequestSpec large = OneWorkerGroup::Spec(2, 800, 100);
    if (aged) large.waited_steps = 20;
    group.scheduler->Requeue(large);
    ASSERT_TRUE(group.scheduler->Enqueue(OneWorkerGroup::Spec(3, 100, 100)).ok());
    bool small_placed = false;
    for (int i = 0; i < 4; ++i) {
      for (const Placement& placement : group.Plan()) small_placed = small_placed || placement.id == 3;
      const auto account = group.scheduler->Account(0);
      group.Report(account.load_tokens + 100 * account.inflight);
    }
    EXPECT_EQ(small_placed, !aged);
  }
}

// A worker that keeps half of its memory free and is never empty would never admit a request of nearly half.
TEST(KvAdmissionWithoutForesight, ARequestRefusedTooOftenReservesAndStarts) {
  int32_t most_refusals = 0;
  for (const char* admission : {"protection:alpha=0", "kv_feasible"}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Group group("bf_io_auto", admission, "max_tokens", 64, seed, /*watermark=*/0.5);
      for (int step = 0; step < 30; ++step) {
        for (int n = 0; n < 3; ++n) group.Arrive(group.Small(), kLongest);
        group.Step();
      }
      const RequestId large = group.Arrive(95, kLongest);
      // It starts while others keep arriving.
      for (int step = 0; step < 400; ++step) {
        for (int n = 0; n < 3; ++n) group.Arrive(group.Small(), kLongest);
        group.Step();
      }
      EXPECT_TRUE(group.Ended(large))
          << admission << ", seed " << seed << ": refused " << group.refusals(large) << " times";
      if (group.refusals(large) >= RequestSpec::kRefusalsBeforeReserving) {
        EXPECT_EQ(group.preempted(large), 0);
      }
      most_refusals = std::max(most_refusals, group.refusals(large));
    }
  }
  EXPECT_EQ(most_refusals, RequestSpec::kRefusalsBeforeReserving);
}

TEST(KvAdmissionWithoutForesight, WorkersRunOutAndAllRequestsStillEnd) {
  int64_t preempted = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Group group("bf_io_auto", "protection:alpha=0", "none", 64, seed);
    preempted += PreemptedInABusyHour(group);
  }
  EXPECT_GT(preempted, 50);
}

TEST(McSfAdmission, BeginsTheShortestFirstAndStopsAtTheFirstThatDoesNotFit) {
  OneWorkerGroup group("mc_sf", "max_tokens");
  // Tokens at their ends: 499, 349, 799, 209.
  for (const auto& [id, prompt, most] :
       std::vector<std::array<int64_t, 3>>{{1, 300, 200}, {2, 200, 150}, {3, 700, 100}, {4, 10, 200}}) {
    group.scheduler->Enqueue(OneWorkerGroup::Spec(static_cast<RequestId>(id), prompt, most)).IgnoreError();
  }
  // Request 3 is first; request 2 holds 200 + 99 when 3 holds all its 799. No request passes 2.
  std::vector<RequestId> begun;
  for (const Placement& placement : group.Plan()) begun.push_back(placement.id);
  EXPECT_THAT(begun, ::testing::ElementsAre(3));
}

}  // namespace
}  // namespace bfio::core
