
#include <gmock/gmock.h>

#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Places the oldest request on the first worker with room.
class FirstFit : public Policy {
 public:
  absl::string_view name() const override { return "first_fit"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    seen_.assign(snapshot.workers.begin(), snapshot.workers.end());
    decision.stopped_early = stopped_early_;
    std::vector<WorkerView> workers(snapshot.workers.begin(), snapshot.workers.end());
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i) {
      for (size_t g = 0; g < workers.size(); ++g) {
        if (workers[g].free_slots < 1 || workers[g].free_kv_tokens < snapshot.waiting[i].kv_reserve_tokens)
          continue;
        --workers[g].free_slots;
        workers[g].free_kv_tokens -= snapshot.waiting[i].kv_reserve_tokens;
        decision.assignments.push_back({i, static_cast<WorkerIndex>(g)});
        break;
      }
    }
  }
  std::vector<WorkerView> seen_;
  bool stopped_early_ = false;
};

RequestSpec Request(RequestId id, int64_t prefill = 10, int64_t max_new = 5) {
  return {.id = id, .prefill_tokens = prefill, .max_new_tokens = max_new};
}

struct Fixture {
  explicit Fixture(PlanMode mode, int32_t workers = 1, int32_t slots = 2, int64_t max_waiting = 100) {
    SchedulerOptions options = {.max_waiting = max_waiting, .plan_mode = mode};
    auto owned = std::make_unique<FirstFit>();
    policy = owned.get();
    scheduler = std::make_unique<OneGroup>(options, std::move(owned));
    std::vector<EpochMember> members(workers);
    for (EpochMember& member : members) member.spec = {slots, 1000, true};
    EXPECT_THAT(scheduler->OpenEpoch(members), IsEmpty());
  }

  absl::Status Report(WorkerIndex worker, int64_t step, int64_t applied, int64_t load,
                      std::vector<RequestId> finished = {}, bool idle = false,
                      std::vector<RequestId> rejected = {}) {
    StepReport report = {.step = step,
                         .applied_plan = applied,
                         .load_tokens = load,
                         .finished = finished,
                         .rejected = rejected,
                         .group_idle = idle};
    return scheduler->OnReport(worker, report);
  }

  FirstFit* policy = nullptr;
  std::unique_ptr<OneGroup> scheduler;
};

std::vector<RequestId> PlacedIds(const Plan& plan) {
  std::vector<RequestId> ids;
  for (const Placement& placement : plan.placements) ids.push_back(placement.id);
  return ids;
}

TEST(Scheduler, PlanReportsAnEarlyEndOnlyWhereThePolicyRan) {
  Fixture f(PlanMode::kLockstep);
  f.policy->stopped_early_ = true;
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  const std::optional<Plan> asked = f.scheduler->MakePlan();
  ASSERT_TRUE(asked.has_value());
  EXPECT_TRUE(asked->stopped_early);
  ASSERT_TRUE(f.Report(0, 1, 1, 10).ok());
  const std::optional<Plan> unasked = f.scheduler->MakePlan();
  ASSERT_TRUE(unasked.has_value());
  EXPECT_FALSE(unasked->stopped_early) << "no request waits";
}

TEST(Scheduler, ParksAnIdleGroupUntilARequestArrives) {
  Fixture f(PlanMode::kPipelined);
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt);
  EXPECT_TRUE(f.scheduler->Parked());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  const auto plan = f.scheduler->MakePlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->apply_step, 1);
  EXPECT_THAT(PlacedIds(*plan), ElementsAre(1));
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt) << "step 1 is planned already";
}

TEST(Scheduler, PipelinedPlansTwoStepsAheadOfTheReports) {
  Fixture f(PlanMode::kPipelined);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  ASSERT_EQ(f.scheduler->MakePlan()->apply_step, 1);
  ASSERT_TRUE(f.Report(0, 1, 1, 10).ok());
  EXPECT_EQ(f.scheduler->MakePlan()->apply_step, 3);
  ASSERT_TRUE(f.Report(0, 2, 1, 11).ok());
  EXPECT_EQ(f.scheduler->MakePlan()->apply_step, 4);
}

TEST(Scheduler, LockstepPlansTheNextStep) {
  Fixture f(PlanMode::kLockstep);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  ASSERT_EQ(f.scheduler->MakePlan()->apply_step, 1);
  ASSERT_TRUE(f.Report(0, 1, 1, 10).ok());
  EXPECT_EQ(f.scheduler->MakePlan()->apply_step, 2);
}

TEST(Scheduler, AssignmentsInFlightOccupyTheirSlots) {
  Fixture f(PlanMode::kPipelined, 1, 2);
  for (RequestId id = 1; id <= 4; ++id) ASSERT_TRUE(f.scheduler->Enqueue(Request(id)).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(1, 2));
  ASSERT_TRUE(f.Report(0, 1, 1, 20, {1}).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(3));  // for step 3
  ASSERT_TRUE(f.Report(0, 2, 1, 11).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), IsEmpty()) << "3 is in flight and holds the slot";
  EXPECT_EQ(f.scheduler->Account(0).inflight, 1);
  ASSERT_TRUE(f.Report(0, 3, 3, 12 + 10).ok());
  EXPECT_EQ(f.scheduler->Account(0).inflight, 0);
  EXPECT_EQ(f.scheduler->Account(0).active, 2);
}

TEST(Scheduler, APreemptedRequestLeavesTheAccountsAndComesBackToTheFront) {
  Fixture f(PlanMode::kLockstep);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(f.scheduler->Enqueue(Request(id, 10, 50)).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(1, 2));
  ASSERT_TRUE(f.Report(0, 1, 1, 20).ok());
  ASSERT_TRUE(f.scheduler->MakePlan().has_value());
  StepReport report = {.step = 2, .applied_plan = 2, .load_tokens = 11};
  const std::vector<RequestId> preempted = {2, 99};
  report.preempted = preempted;
  ASSERT_TRUE(f.scheduler->OnReport(0, report).ok());
  EXPECT_EQ(f.scheduler->Account(0).active, 1);
  EXPECT_EQ(f.scheduler->Account(0).load_tokens, 12);
  EXPECT_EQ(f.scheduler->Account(0).reserved_kv_tokens, 59);
  EXPECT_FALSE(f.scheduler->Knows(2));
  EXPECT_EQ(f.scheduler->totals().preempted, 1);
  EXPECT_EQ(f.scheduler->totals().unknown_ids, 1);
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0) << "what it took away is what it held";
  RequestSpec again = Request(2, 11, 49);
  again.generated_tokens = 1;
  f.scheduler->Requeue(again);
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(2)) << "ahead of 3";
  EXPECT_EQ(f.scheduler->Account(0).reserved_kv_tokens, 2 * 59);
}

TEST(Scheduler, LoadIsProjectedToThePlansStep) {
  Fixture f(PlanMode::kPipelined, 1, 3);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1, 100)).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 1, 1, 100).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(2, 50)).ok());
  f.scheduler->MakePlan();  // for step 3
  EXPECT_EQ(f.policy->seen_[0].load_tokens, 102);
  ASSERT_TRUE(f.Report(0, 2, 1, 101).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(3, 50)).ok());
  f.scheduler->MakePlan();  // for step 4: 1 at 103, 2 (started in 3) at 51
  EXPECT_EQ(f.policy->seen_[0].load_tokens, 154);
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0);
}

TEST(Scheduler, TakesTheWorkersLoadAndCountsTheDrift) {
  Fixture f(PlanMode::kLockstep);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1, 100)).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 1, 1, 107).ok());
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 7);
  EXPECT_EQ(f.scheduler->Account(0).load_tokens, 108);
  ASSERT_TRUE(f.Report(0, 2, 1, 108).ok());
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 7);
}

TEST(Scheduler, AFullPoolRefuses) {
  Fixture f(PlanMode::kLockstep, 1, 2, 1);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  EXPECT_EQ(f.scheduler->Enqueue(Request(2)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(f.scheduler->Enqueue(Request(1)).code(), absl::StatusCode::kAlreadyExists);
}

TEST(Scheduler, CancelOfAWaitingRequestNeedsNoWorker) {
  Fixture f(PlanMode::kLockstep);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  EXPECT_EQ(f.scheduler->Cancel(1), CancelOutcome::kDequeued);
  EXPECT_EQ(f.scheduler->Cancel(1), CancelOutcome::kUnknown);
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt);
}

TEST(Scheduler, CancelOfAPlacedRequestFreesItsSlotWhenAcknowledged) {
  Fixture f(PlanMode::kPipelined, 1, 1);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(2)).ok());
  f.scheduler->MakePlan();
  EXPECT_EQ(f.scheduler->Cancel(1), CancelOutcome::kDropped);
  ASSERT_TRUE(f.Report(0, 1, 1, 10).ok());
  const auto plan = f.scheduler->MakePlan();  // for step 3
  ASSERT_EQ(plan->drops.size(), 1u);
  EXPECT_EQ(plan->drops[0].id, 1u);
  EXPECT_THAT(plan->placements, IsEmpty());
  ASSERT_TRUE(f.Report(0, 2, 1, 11).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 3, 3, 0, {}, true).ok());
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt) << "the plan for step 4 is out already";
  ASSERT_TRUE(f.Report(0, 4, 4, 0, {}, true).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(2));
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0);
}

TEST(Scheduler, RejectedAssignmentsReturnToTheFrontOfThePool) {
  Fixture f(PlanMode::kLockstep, 1, 2);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(f.scheduler->Enqueue(Request(id)).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 1, 1, 10, {}, false, {2}).ok());
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0);
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(2));
}

TEST(Scheduler, RefusesReportsThatContradictTheState) {
  Fixture f(PlanMode::kLockstep);
  EXPECT_EQ(f.Report(1, 1, 0, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(f.Report(0, 2, 0, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(f.Report(0, 1, 9, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(f.Report(0, 1, 0, -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(f.Report(0, 1, 0, 0, {77}, true).ok());
  EXPECT_EQ(f.scheduler->totals().unknown_ids, 1);
}

TEST(Scheduler, ADrainingWorkerGetsNoNewRequests) {
  Fixture f(PlanMode::kLockstep, 2, 1);
  f.scheduler->SetAcceptsNew(0, false);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(2)).ok());
  const auto plan = f.scheduler->MakePlan();
  ASSERT_EQ(plan->placements.size(), 1u);
  EXPECT_EQ(plan->placements[0].worker, 1);
}

TEST(Scheduler, AnIdleGroupIsNotSpunByRequestsThatFitNowhere) {
  Fixture f(PlanMode::kLockstep);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1, 5000)).ok());  // more than the worker's 1,000 KV tokens
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt);
  EXPECT_EQ(f.scheduler->waiting(), 1);
}

TEST(Scheduler, ANewEpochKeepsRecoveredRequestsAndReturnsTheRest) {
  Fixture f(PlanMode::kPipelined, 2, 1);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1, 100)).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(2, 200)).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 1, 1, 100).ok());
  ASSERT_TRUE(f.Report(1, 1, 1, 200).ok());
  f.scheduler->CloseEpoch();
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt);
  // Rank 0 is lost; the old rank 1 is the new rank 0 and also holds an unknown request.
  EpochMember remaining = {.spec = {2, 1000, true}, .resident = {{2, 201}, {99, 50}}};
  EXPECT_THAT(f.scheduler->OpenEpoch({remaining}), ElementsAre(1));
  EXPECT_EQ(f.scheduler->WorkerOf(2), 0);
  EXPECT_EQ(f.scheduler->Account(0).load_tokens, 201);
  f.scheduler->Requeue(Request(1, 101, 4));
  const auto plan = f.scheduler->MakePlan();
  EXPECT_EQ(plan->apply_step, 1);
  EXPECT_THAT(PlacedIds(*plan), ElementsAre(1));
  ASSERT_EQ(plan->drops.size(), 1u);
  EXPECT_EQ(plan->drops[0].id, 99u);
  ASSERT_TRUE(f.Report(0, 1, 1, 201 + 101).ok());
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0);
}

TEST(Scheduler, WhatTwoMembersHoldOneOfThemDrops) {
  Fixture f(PlanMode::kPipelined, 2, 1);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1, 100)).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 1, 1, 100).ok());
  ASSERT_TRUE(f.Report(1, 1, 1, 0).ok());
  std::vector<EpochMember> both(2);
  for (EpochMember& member : both) {
    member.spec = {1, 1000, true};
    member.resident = {{1, 101}, {1, 101}};
  }
  EXPECT_THAT(f.scheduler->OpenEpoch(both), IsEmpty());
  EXPECT_EQ(f.scheduler->WorkerOf(1), 0);
  EXPECT_EQ(f.scheduler->Account(0).load_tokens, 101);
  EXPECT_EQ(f.scheduler->Account(1).load_tokens, 0);
  const auto plan = f.scheduler->MakePlan();
  ASSERT_TRUE(plan.has_value());
  for (const auto& drop : plan->drops) EXPECT_EQ(drop.worker, 1);
  EXPECT_FALSE(plan->drops.empty());
}

TEST(Scheduler, RecoversTheRequestsOfAJoiningMember) {
  Fixture f(PlanMode::kLockstep);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  EpochMember remaining = {.spec = {3, 1000, true}};
  RequestSpec brought = Request(7, 30, 4);
  brought.generated_tokens = 20;
  // The second id is that of a request that waits in the pool, so the worker drops its copy.
  remaining.resident = {{7, 30}, {1, 10}};
  remaining.recovered = {brought, Request(1)};
  EXPECT_THAT(f.scheduler->OpenEpoch({remaining}), IsEmpty());
  EXPECT_EQ(f.scheduler->Account(0).active, 1);
  EXPECT_EQ(f.scheduler->Account(0).load_tokens, 30);
  EXPECT_EQ(f.scheduler->Account(0).reserved_kv_tokens, 33);
  EXPECT_EQ(f.scheduler->WorkerOf(7), 0);
  const auto plan = f.scheduler->MakePlan();
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->drops.size(), 1u);
  EXPECT_EQ(plan->drops[0].id, 1u);
  EXPECT_THAT(PlacedIds(*plan), ElementsAre(1));
  ASSERT_TRUE(f.Report(0, 1, 1, 30 + 10).ok());
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0);
  ASSERT_TRUE(f.Report(0, 2, 1, 31 + 11, {7}).ok());
  EXPECT_EQ(f.scheduler->totals().drift_tokens, 0);
  EXPECT_EQ(f.scheduler->Account(0).active, 1);
  // The next loss displaces it like any other request.
  EXPECT_THAT(f.scheduler->OpenEpoch({}), ElementsAre(1));
}

TEST(Scheduler, ACancelledRequestIsNotReturnedWhenItsWorkerIsLost) {
  Fixture f(PlanMode::kPipelined, 1, 1);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  f.scheduler->MakePlan();
  f.scheduler->Cancel(1);
  EpochMember fresh = {.spec = {1, 1000, true}};
  EXPECT_THAT(f.scheduler->OpenEpoch({fresh}), IsEmpty());
  EXPECT_EQ(f.scheduler->placed(), 0);
}

TEST(Scheduler, ARequeuedRequestSurvivesTheDropOfItsStaleCopy) {
  Fixture f(PlanMode::kPipelined, 1, 1);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  f.scheduler->MakePlan();
  EXPECT_THAT(f.scheduler->OpenEpoch({}), ElementsAre(1));
  f.scheduler->Requeue(Request(1));
  EpochMember back;  // the worker returns, still holding its copy
  back.spec = {1, 1000, true};
  back.resident = {{1, 10}};
  EXPECT_THAT(f.scheduler->OpenEpoch({back}), IsEmpty());
  const auto plan = f.scheduler->MakePlan();
  EXPECT_EQ(plan->drops.size(), 1u);
  EXPECT_THAT(PlacedIds(*plan), ElementsAre(1));
  ASSERT_TRUE(f.Report(0, 1, 1, 10).ok());
  EXPECT_EQ(f.scheduler->WorkerOf(1), 0);
  EXPECT_EQ(f.scheduler->Account(0).active, 1);
}

TEST(Scheduler, AResidentNamedTwiceIsOneRequest) {
  Fixture f(PlanMode::kPipelined, 1, 2);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  f.scheduler->MakePlan();
  EpochMember twice = {.spec = {2, 1000, true}, .resident = {{1, 10}, {1, 10}}};
  EXPECT_THAT(f.scheduler->OpenEpoch({twice}), IsEmpty());
  EXPECT_EQ(f.scheduler->Account(0).active, 1);
  EXPECT_THAT(f.scheduler->MakePlan()->drops, IsEmpty());
}

TEST(Scheduler, ARefusalBeforeTheAcknowledgementIsNotCountedTwice) {
  Fixture f(PlanMode::kPipelined, 1, 2);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  f.scheduler->MakePlan();                                           // step 1
  ASSERT_TRUE(f.Report(0, 1, 0, 0, {}, false, {1}).ok());            // refused, its plan not acknowledged
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(1));  // step 3
  ASSERT_TRUE(f.Report(0, 2, 1, 0).ok());
  EXPECT_EQ(f.scheduler->Account(0).inflight, 1) << "the old plan's acknowledgement is not the new one's";
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 3, 3, 10).ok());
  EXPECT_EQ(f.scheduler->Account(0).inflight, 0);
  EXPECT_EQ(f.scheduler->Account(0).active, 1);
}

TEST(Scheduler, ForcedPlanGoesOneStepFurtherWhileAReportIsMissing) {
  Fixture f(PlanMode::kPipelined, 2, 2);
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  f.scheduler->MakePlan();
  ASSERT_TRUE(f.Report(0, 1, 1, 10).ok());
  ASSERT_TRUE(f.Report(1, 1, 1, 0).ok());
  EXPECT_EQ(f.scheduler->MakePlan()->apply_step, 3);
  ASSERT_TRUE(f.Report(0, 2, 1, 11).ok());
  EXPECT_EQ(f.scheduler->MakePlan(), std::nullopt) << "rank 1 has not reported step 2";
  EXPECT_EQ(f.scheduler->MakePlan(true)->apply_step, 4);
}

TEST(Scheduler, PolicyViolationsAreNotCarriedOut) {
  class Broken : public Policy {
   public:
    absl::string_view name() const override { return "broken"; }
    void Decide(const Snapshot&, Decision& decision) override {
      decision.assignments = {{0, 0}, {0, 0}, {5, 0}, {1, 7}, {1, 0}, {-1, 0}};
    }
  };
  Fixture f(PlanMode::kLockstep, 1, 1);
  f.scheduler->SetPolicy(std::make_unique<Broken>());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(2)).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(1));
  EXPECT_EQ(f.scheduler->totals().policy_violations, 5);
  EXPECT_EQ(f.scheduler->waiting(), 1);
}

TEST(Scheduler, ARequestThatAPolicyNamesTwiceIsPlacedOnce) {
  class Twice : public Policy {
   public:
    absl::string_view name() const override { return "twice"; }
    void Decide(const Snapshot&, Decision& decision) override {
      decision.assignments = {{0, 0}, {0, 1}, {1, 1}, {0, 0}};
    }
  };
  Fixture f(PlanMode::kLockstep, 2, 4);
  f.scheduler->SetPolicy(std::make_unique<Twice>());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(1)).ok());
  ASSERT_TRUE(f.scheduler->Enqueue(Request(2)).ok());
  EXPECT_THAT(PlacedIds(*f.scheduler->MakePlan()), ElementsAre(1, 2));
  EXPECT_EQ(f.scheduler->totals().policy_violations, 2);
  EXPECT_EQ(f.scheduler->waiting(), 0);
}

// Records the step of every decision; places like FirstFit.
class Clocked : public FirstFit {
 public:
  explicit Clocked(std::vector<int64_t>* steps) : steps_(steps) {}
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    steps_->push_back(snapshot.step);
    FirstFit::Decide(snapshot, decision);
  }

 private:
  std::vector<int64_t>* steps_;
};

// A draining worker continues without plans, and the policy decides for a step for which no plan is sent. The
// next epoch's first step must be later than both.
TEST(SchedulerClock, NeverRunsBackwardsAcrossEpochs) {
  std::vector<int64_t> steps;
  SchedulerOptions options = {.plan_mode = PlanMode::kPipelined};
  OneGroup scheduler(options, std::make_unique<Clocked>(&steps));
  EpochMember member = {.spec = {2, 1'000, true}};
  scheduler.OpenEpoch({member});
  for (RequestId id : {1, 2, 3}) ASSERT_TRUE(scheduler.Enqueue(Request(id)).ok());
  ASSERT_TRUE(scheduler.MakePlan().has_value());
  scheduler.SetAcceptsNew(0, false);
  const std::vector<RequestId> both = {1, 2};
  for (int64_t step = 1; step <= 6; ++step) {
    StepReport report = {.step = step, .applied_plan = 1, .load_tokens = 20 + 2 * (step - 1)};
    if (step == 6) report.finished = both;
    report.group_idle = step == 6;
    ASSERT_TRUE(scheduler.OnReport(0, report).ok());
  }
  EXPECT_FALSE(scheduler.MakePlan().has_value()) << "no worker takes a request";
  scheduler.OpenEpoch({member});
  ASSERT_TRUE(scheduler.MakePlan().has_value());
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_GT(steps[1], steps[0]);
  EXPECT_GT(steps[2], steps[1]);
}

TEST(SchedulerWindow, NeverLeavesSlotsEmpty) {
  SchedulerOptions options = {.window = 1};
  OneGroup scheduler(options, std::make_unique<FirstFit>());
  EpochMember member = {.spec = {3, 1'000, true}};
  scheduler.OpenEpoch({member});
  for (RequestId id : {1, 2, 3, 4}) ASSERT_TRUE(scheduler.Enqueue(Request(id)).ok());
  const std::optional<Plan> plan = scheduler.MakePlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->placements.size(), 3u);
}

}  // namespace
}  // namespace bfio::core
