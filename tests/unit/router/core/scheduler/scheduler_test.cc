// Single events of a group with a barrier; tests/property/cluster_test.cc checks what must hold for any order
// of events.
#include <gmock/gmock.h>

#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core::scheduler_test {

using bfio::testing::FirstFit;
using bfio::testing::Request;
using bfio::testing::StepGroup;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Group : public StepGroup {
 public:
  explicit Group(PlanMode mode, size_t workers = 1, int32_t slots = 2)
      : Group(new FirstFit, mode, std::vector(workers, WorkerSpec{.slots = slots, .kv_tokens = 1000})) {}

  // Opens an epoch of workers with 3 slots. Returns the requests that are displaced.
  std::vector<RequestId> Reopen(std::vector<std::vector<ResidentRequest>> residents,
                                const std::vector<RequestSpec>& recovered = {}) {
    std::vector<EpochMember> members;
    for (const std::vector<ResidentRequest>& resident : residents)
      members.push_back({{.slots = 3, .kv_tokens = 1000}, resident, recovered});
    workers.assign(members.size(), {});
    return group.OpenEpoch(std::move(members));
  }
  // Worker 0 reports a step of its own making.
  absl::Status Report(int64_t step, int64_t applied, int64_t load, std::vector<RequestId> finished = {},
                      std::vector<RequestId> rejected = {}, WorkerIndex worker = 0) {
    return group.OnReport(worker, {.step = step,
                                   .applied_plan = applied,
                                   .load_tokens = load,
                                   .finished = finished,
                                   .rejected = rejected});
  }
  FirstFit& policy;

 private:
  Group(FirstFit* owned, PlanMode mode, const std::vector<WorkerSpec>& specs)
      : StepGroup(specs, std::unique_ptr<Policy>(owned), {.plan_mode = mode}), policy(*owned) {}
};

TEST(Scheduler, APlanReportsAnEarlyEndOnlyWhereThePolicyRan) {
  Group f(PlanMode::kLockstep);
  f.policy.stopped_early = true;
  f.Wait(1, 1);
  f.Step();
  EXPECT_TRUE(f.last.stopped_early);
  f.Step();
  EXPECT_EQ(f.last.apply_step, 2);
  EXPECT_FALSE(f.last.stopped_early) << "no request waits";
}

TEST(Scheduler, PlansAreForTheNextStepOrTwoAheadOfTheReports) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    Group f(mode, 2);
    f.Plan();
    EXPECT_TRUE(f.group.Parked());
    f.Wait(1, 1);
    EXPECT_EQ(f.Plan(), "1@0");
    EXPECT_EQ(f.last.apply_step, 1);
    for (int64_t step = 1; step <= 3; ++step) {
      f.Step();
      f.Plan();
      EXPECT_EQ(f.last.apply_step, step + (mode == PlanMode::kPipelined ? 2 : 1));
    }
    if (mode == PlanMode::kLockstep) continue;
    ASSERT_TRUE(f.Report(4, 4, 13).ok());
    f.Plan();
    EXPECT_EQ(f.last.apply_step, 5) << "worker 1 has not reported step 4";
    f.Plan(/*force=*/true);
    EXPECT_EQ(f.last.apply_step, 6);
  }
}

TEST(Scheduler, ReportsThatContradictTheStateAreRefused) {
  Group f(PlanMode::kLockstep);
  EXPECT_TRUE(absl::IsInvalidArgument(f.Report(1, 0, 0, {}, {}, /*worker=*/1)));
  EXPECT_TRUE(absl::IsInvalidArgument(f.Report(2, 0, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(f.Report(1, 9, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(f.Report(1, 0, -1)));
  EXPECT_TRUE(f.Report(1, 0, 0, {77}).ok());
  EXPECT_EQ(f.totals().unknown_ids, 1);
}

TEST(Scheduler, AnIdleGroupIsNotSpunByRequestsThatFitNowhere) {
  Group f(PlanMode::kLockstep);
  f.Enqueue(Request(1, 5000));  // more than the worker's 1,000 KV tokens
  EXPECT_EQ(f.group.MakePlan(), std::nullopt);
  EXPECT_EQ(f.group.waiting(), 1);
}

TEST(Scheduler, ANewEpochKeepsRecoveredRequestsAndReturnsTheRest) {
  Group f(PlanMode::kPipelined, 2, 1);
  f.Enqueue(Request(1, 100));
  f.Enqueue(Request(2, 200));
  f.Step();
  f.group.CloseEpoch();
  EXPECT_EQ(f.Plan(), "");
  // Rank 0 is lost; the old rank 1 is the new rank 0, names its request twice and also holds an unknown one.
  EXPECT_THAT(f.Reopen({{{2, 201}, {2, 201}, {99, 50}}}), ElementsAre(1));
  EXPECT_EQ(f.group.WorkerOf(2), 0);
  EXPECT_EQ(f.Account().active, 1);
  EXPECT_EQ(f.Account().load_tokens, 201);
  f.group.Requeue(Request(1, 101, 4));
  EXPECT_EQ(f.Plan(), "1@0 -99@0");
  EXPECT_EQ(f.last.apply_step, 1);
  ASSERT_TRUE(f.Report(1, 1, 201 + 101).ok());
  EXPECT_EQ(f.totals().drift_tokens, 0);
}

TEST(Scheduler, WhatTwoMembersHoldOneOfThemDrops) {
  Group f(PlanMode::kPipelined, 2, 1);
  f.Enqueue(Request(1, 100));
  f.Step();
  EXPECT_THAT(f.Reopen({{{1, 101}, {1, 101}}, {{1, 101}, {1, 101}}}), IsEmpty());
  EXPECT_EQ(f.group.WorkerOf(1), 0);
  EXPECT_EQ(f.Account(0).load_tokens, 101);
  EXPECT_EQ(f.Account(1).load_tokens, 0);
  f.Plan();
  EXPECT_FALSE(f.last.drops.empty());
  for (const Drop& drop : f.last.drops) EXPECT_EQ(drop.worker, 1);
}

// It was dropped there and placed elsewhere, and its worker has not applied the drop.
TEST(Scheduler, TheCopyOfAnotherMemberIsDropped) {
  Group f(PlanMode::kLockstep, 2);
  const WorkerSpec one = {.slots = 3, .kv_tokens = 1000, .member = 1};
  const WorkerSpec two = {.slots = 3, .kv_tokens = 1000, .member = 2};
  f.group.OpenEpoch({{one}, {two}});
  f.Enqueue(Request(1, 100));
  EXPECT_EQ(f.Plan(), "1@0");
  EXPECT_THAT(f.group.OpenEpoch({{one}, {two, {{1, 101}}}}), ElementsAre(1));
  EXPECT_EQ(f.Plan(), "-1@1");
}

TEST(Scheduler, RecoversTheRequestsOfAJoiningMember) {
  Group f(PlanMode::kLockstep);
  f.Enqueue(Request(1, 10, 5));
  RequestSpec brought = Request(7, 30, 4);
  brought.generated_tokens = 20;
  // The second id is that of a request that waits in the pool, so the worker drops its copy.
  EXPECT_THAT(f.Reopen({{{7, 30}, {1, 10}}}, {brought, Request(1)}), IsEmpty());
  EXPECT_EQ(f.Account().active, 1);
  EXPECT_EQ(f.Account().load_tokens, 30);
  EXPECT_EQ(f.Account().reserved_kv_tokens, 33);
  EXPECT_EQ(f.group.WorkerOf(7), 0);
  EXPECT_EQ(f.Plan(), "1@0 -1@0");
  ASSERT_TRUE(f.Report(1, 1, 30 + 10).ok());
  ASSERT_TRUE(f.Report(2, 1, 31 + 11, {7}).ok());
  EXPECT_EQ(f.totals().drift_tokens, 0);
  EXPECT_EQ(f.Account().active, 1);
  // The next loss displaces it like any other request.
  EXPECT_THAT(f.Reopen({}), ElementsAre(1));
}

TEST(Scheduler, ARequeuedRequestSurvivesTheDropOfItsStaleCopy) {
  Group f(PlanMode::kPipelined, 1, 1);
  f.Wait(1, 1);
  f.Plan();
  EXPECT_THAT(f.Reopen({}), ElementsAre(1));
  f.group.Requeue(Request(1));
  EXPECT_THAT(f.Reopen({{{1, 10}}}), IsEmpty()) << "the worker returns, still holding its copy";
  EXPECT_EQ(f.Plan(), "1@0 -1@0");
  ASSERT_TRUE(f.Report(1, 1, 10).ok());
  EXPECT_EQ(f.group.WorkerOf(1), 0);
  EXPECT_EQ(f.Account().active, 1);
}

TEST(Scheduler, ARefusedRequestComesBackToTheFrontAndItsRefusalIsNotCountedTwice) {
  Group f(PlanMode::kPipelined, 1, 1);
  f.Wait(1, 2);
  EXPECT_EQ(f.Plan(), "1@0");                    // step 1
  ASSERT_TRUE(f.Report(1, 0, 0, {}, {1}).ok());  // refused, its plan not acknowledged
  EXPECT_EQ(f.Plan(), "1@0");                    // step 3
  ASSERT_TRUE(f.Report(2, 1, 0).ok());
  EXPECT_EQ(f.Account().inflight, 1) << "the old plan's acknowledgement is not the new one's";
  f.Plan();
  ASSERT_TRUE(f.Report(3, 3, 10).ok());
  EXPECT_EQ(f.Account().inflight, 0);
  EXPECT_EQ(f.Account().active, 1);
  EXPECT_EQ(f.totals().drift_tokens, 0);
}

TEST(Scheduler, WhatAPolicyMustNotAssignIsNotPlaced) {
  class Fixed : public Policy {
   public:
    explicit Fixed(std::vector<Assignment> assignments) : assignments_(std::move(assignments)) {}
    absl::string_view name() const override { return "fixed"; }
    void Decide(const Snapshot&, Decision& decision) override { decision.assignments = assignments_; }

   private:
    const std::vector<Assignment> assignments_;
  };
  Group one(PlanMode::kLockstep, 1, 1), two(PlanMode::kLockstep, 2, 4);
  one.Wait(1, 2), two.Wait(1, 2);
  one.group.SetPolicy(
      std::make_unique<Fixed>(std::vector<Assignment>{{0, 0}, {0, 0}, {5, 0}, {1, 7}, {1, 0}, {-1, 0}}));
  EXPECT_EQ(one.Plan(), "1@0");
  EXPECT_EQ(one.totals().policy_violations, 5);
  two.group.SetPolicy(std::make_unique<Fixed>(std::vector<Assignment>{{0, 0}, {0, 1}, {1, 1}, {0, 0}}));
  EXPECT_EQ(two.Plan(), "1@0 2@1") << "a request that is named twice is placed once";
  EXPECT_EQ(two.totals().policy_violations, 2);
}

// A draining worker continues without plans, and the policy decides for a step for which no plan is sent. The
// next epoch's first step must be later than both.
TEST(Scheduler, TheClockNeverRunsBackwardsAcrossEpochs) {
  Group f(PlanMode::kPipelined);
  for (RequestId id : {1, 2, 3}) f.Enqueue(Request(id, 10, 6));
  EXPECT_EQ(f.Plan(), "1@0 2@0");
  f.group.SetAcceptsNew(0, false);
  for (int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(f.Report(step, 1, 20 + 2 * (step - 1)).ok());
  StepReport report = {.step = 6, .applied_plan = 1, .load_tokens = 30, .group_idle = true};
  const std::vector<RequestId> both = {1, 2};
  report.finished = both;
  ASSERT_TRUE(f.group.OnReport(0, report).ok());
  EXPECT_EQ(f.Plan(), "") << "no worker takes a request";
  f.Reopen({{}});
  EXPECT_EQ(f.Plan(), "3@0");
  ASSERT_EQ(f.policy.steps.size(), 3u);
  EXPECT_GT(f.policy.steps[1], f.policy.steps[0]);
  EXPECT_GT(f.policy.steps[2], f.policy.steps[1]);
}

TEST(Scheduler, ASmallWindowLeavesNoSlotsEmpty) {
  StepGroup group({{.slots = 3, .kv_tokens = 1000}}, std::make_unique<FirstFit>(), {.window = 1});
  group.Wait(1, 4);
  EXPECT_EQ(group.Plan(), "1@0 2@0 3@0");
}

}  // namespace bfio::core::scheduler_test
