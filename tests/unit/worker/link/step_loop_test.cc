// The step loop within an epoch: plans, steps, reports and parking.
#include "worker/link/step_loop.h"

#include <optional>

#include "gmock/gmock.h"
#include "tests/testing/step_loop_ranks.h"
#include "worker/engine/sim/sim_engine.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(StepLoopTest, LockstepAppliesEachPlanAtItsStepAndReportsTheSums) {
  Start(2);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 3)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  auto a = Report(0), b = Report(1);
  EXPECT_EQ(a.step, 1);
  EXPECT_EQ(a.applied_plan, 1);
  ASSERT_EQ(a.output.tokens.size(), 1u);
  EXPECT_EQ(a.output.tokens[0].handle, 10u);
  EXPECT_EQ(a.output.load_tokens, 100);
  EXPECT_EQ(a.output.prefill_tokens, 100);
  EXPECT_EQ(a.active_requests, 1);
  EXPECT_EQ(a.free_slots, 1);
  EXPECT_EQ(a.free_kv_tokens, 1000 - 102);
  EXPECT_FALSE(a.gap_ns.has_value());
  EXPECT_FALSE(a.group_idle);
  EXPECT_EQ(b.output.load_tokens, 0);
  for (const auto& report : {a, b}) {
    EXPECT_EQ(report.group.max_load_tokens, 100);
    EXPECT_EQ(report.group.sum_load_tokens, 100);
    EXPECT_EQ(report.barrier_error, "");
  }
  EXPECT_GE(a.group.max_local_ns, a.local_ns);
  EXPECT_EQ(a.group.sum_local_ns, a.local_ns + b.local_ns);

  ranks_[0]->inbox().OnPlan(MakePlan(1, 2));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 50, 1)}));
  a = Report(0), b = Report(1);
  EXPECT_EQ(a.group.sum_load_tokens, 151);
  EXPECT_TRUE(a.gap_ns.has_value());
  ASSERT_EQ(b.output.finished.size(), 1u);
  EXPECT_EQ(b.output.finished[0].handle, 11u);
  EXPECT_EQ(b.active_requests, 0);

  PlanForAll(1, 3);
  a = Report(0), b = Report(1);
  EXPECT_EQ(a.output.finished.size(), 1u);
  EXPECT_TRUE(a.group_idle);
  EXPECT_TRUE(b.group_idle);
}

TEST_F(StepLoopTest, LockstepFailsWhenThePlanDoesNotArrive) {
  Start(1);
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kLockstep);
  epoch.step_timeout = absl::Milliseconds(20);
  ranks_[0]->inbox().OnEpoch(epoch);
  EXPECT_EQ(ranks_[0]->link.Next<EpochReady>().error, "");
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 9)}));
  EXPECT_EQ(Report(0).barrier_error, "");
  const auto report = Report(0);
  EXPECT_EQ(report.step, 2);
  EXPECT_THAT(report.barrier_error, HasSubstr("no plan for step 2"));
  EXPECT_EQ(report.active_requests, 1);
  // The next epoch still has the request.
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 2, PlanMode::kLockstep));
  const auto ready = ranks_[0]->link.Next<EpochReady>();
  ASSERT_EQ(ready.active.size(), 1u);
  EXPECT_EQ(ready.active[0].handle, 10u);
  EXPECT_EQ(ready.active[0].generated_tokens, 1);
  EXPECT_EQ(ready.active[0].kv_tokens, 101);
}

TEST_F(StepLoopTest, PipelinedStepsWithoutWaitingAndAppliesAtTheRightStep) {
  Start(2, /*gated=*/true);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  // A plan two steps ahead must not be applied before step 3.
  ranks_[1]->inbox().OnPlan(MakePlan(1, 3, {Request(11, 40, 50)}));
  std::vector<int64_t> loads, applied;
  for (int step = 1; step <= 4; ++step) {
    for (auto& rank : ranks_) rank->gate.Give(1);
    EXPECT_EQ(Report(0).step, step);
    const auto report = Report(1);
    loads.push_back(report.output.load_tokens);
    applied.push_back(report.applied_plan);
  }
  EXPECT_THAT(loads, ElementsAre(0, 0, 40, 41));
  EXPECT_THAT(applied, ElementsAre(1, 1, 3, 3));
}

TEST_F(StepLoopTest, PipelinedAppliesALatePlanAtTheNextBoundary) {
  Start(1, /*gated=*/true);
  OpenEpoch(1, PlanMode::kPipelined);
  auto& rank = *ranks_[0];
  rank.inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50)}));
  rank.gate.Give(3);
  for (int step = 1; step <= 3; ++step) EXPECT_EQ(Report(0).applied_plan, 1);
  rank.gate.AwaitWaiting();                                    // rank 0 is in the local part of step 4
  rank.inbox().OnPlan(MakePlan(1, 3, {Request(11, 40, 50)}));  // two steps late
  rank.gate.Give(2);
  auto report = Report(0);
  EXPECT_EQ(report.applied_plan, 1);
  EXPECT_EQ(report.output.tokens.size(), 1u);
  report = Report(0);
  EXPECT_EQ(report.step, 5);
  EXPECT_EQ(report.applied_plan, 3);
  EXPECT_EQ(report.output.tokens.size(), 2u);
}

TEST_F(StepLoopTest, AnIdleGroupParksOnAllRanksAndWakesTogether) {
  Start(3);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 2)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  ranks_[2]->inbox().OnPlan(MakePlan(1, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Report(i).group_idle);
    EXPECT_TRUE(Report(i).group_idle);
  }
  // A plan for a past step does not wake the group; it is applied together with a newer one.
  ranks_[1]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 7, 1)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 3));
  ranks_[0]->inbox().OnPlan(MakePlan(1, 3));
  ranks_[2]->inbox().OnPlan(MakePlan(1, 3, {Request(12, 9, 1)}));
  for (int i = 0; i < 3; ++i) {
    const auto report = Report(i);
    EXPECT_EQ(report.step, 3);
    EXPECT_EQ(report.applied_plan, 3);
    EXPECT_EQ(report.group.sum_load_tokens, 16);
    EXPECT_FALSE(report.gap_ns.has_value()) << "an idle wait is no gap";
    EXPECT_TRUE(report.group_idle);
  }
  for (auto& rank : ranks_) EXPECT_TRUE(rank->link.Empty());
}

TEST_F(StepLoopTest, AnAssignmentForALaterStepKeepsTheGroupAwake) {
  Start(2);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  ranks_[0]->inbox().OnPlan(MakePlan(1, 3, {Request(10, 100, 1)}));
  // Rank 0 is woken by the plan for step 3, rank 1 by the one for step 1; both step up to step 3.
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < 2; ++i) {
      const auto report = Report(i);
      EXPECT_EQ(report.step, step);
      EXPECT_EQ(report.group_idle, step == 3);
      EXPECT_EQ(report.group.sum_load_tokens, step == 3 ? 100 : 0);
    }
  }
}

TEST_F(StepLoopTest, CancellationsAreAppliedAndUnknownOnesIgnored) {
  Start(1, /*gated=*/true);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50), Request(11, 20, 50)}));
  ranks_[0]->gate.Give(2);
  EXPECT_EQ(Report(0).active_requests, 2);
  Plan plan = MakePlan(1, 2, {Request(12, 5, 50)});  // takes the slot that the cancellation frees
  plan.cancellations = {10, 999};
  ranks_[0]->inbox().OnPlan(plan);
  const auto report = Report(0);
  EXPECT_EQ(report.active_requests, 2);
  EXPECT_EQ(report.output.load_tokens, 21 + 5);
  EXPECT_THAT(report.rejected, IsEmpty());
}

TEST_F(StepLoopTest, RefusedAssignmentsAreReportedWithTheirCode) {
  Start(1);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(
      1, 1, {Request(10, 400, 90), Request(11, 600, 9), Request(12, 400, 90), Request(13, 300, 10)}));
  const auto report = Report(0);
  ASSERT_EQ(report.rejected.size(), 2u);
  EXPECT_EQ(report.rejected[0].handle, 11u);
  EXPECT_EQ(report.rejected[0].code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(report.rejected[1].handle, 13u);
  EXPECT_EQ(report.rejected[1].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(report.active_requests, 2);
}

TEST_F(StepLoopTest, AFailedRequestEndsWithInternalAndTheRankContinues) {
  Start(1, false, /*slots=*/4);
  OpenEpoch(1, PlanMode::kLockstep);
  SequenceRequest poisoned = Request(11, 2, 5);
  poisoned.prompt = {5, kSimPoisonToken};
  Plan plan = MakePlan(1, 1, {Request(10, 30, 5), poisoned});
  plan.notes = {{"resumable", {}}, {"resumable", {}}};
  ranks_[0]->inbox().OnPlan(plan);
  const StepReport failed = Report(0);
  ASSERT_EQ(failed.rejected.size(), 1u);
  EXPECT_EQ(failed.rejected[0].handle, 11u);
  EXPECT_EQ(failed.rejected[0].code, absl::StatusCode::kInternal);
  EXPECT_THAT(failed.rejected[0].message, HasSubstr("not finite"));
  EXPECT_EQ(failed.barrier_error, "");
  EXPECT_EQ(failed.output.load_tokens, 30);
  EXPECT_EQ(failed.active_requests, 1);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 2, {Request(12, 400, 5)}));
  EXPECT_EQ(Report(0).output.tokens.size(), 2u);
  PlanForAll(1, 3);
  Report(0);
  const RankTelemetry telemetry = ranks_[0]->recorder.telemetry();
  EXPECT_EQ(telemetry.failed_requests, 1u);
  EXPECT_EQ(telemetry.held_requests, 1) << "a failed request is not kept for another router";
}

TEST_F(StepLoopTest, AnIndependentRankAppliesPlansWhateverTheirNumbers) {
  Start(1, /*gated=*/true, /*slots=*/4);
  auto& rank = *ranks_[0];
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kPipelined);
  epoch.uncoupled = true;
  rank.inbox().OnEpoch(epoch);
  EXPECT_EQ(rank.link.Next<EpochReady>().error, "");
  rank.inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 3)}));
  rank.gate.AwaitWaiting();  // the rank is in the local part of step 1
  for (int64_t number = 3; number <= 5; ++number)
    rank.inbox().OnPlan(MakePlan(1, number, {Request(10 + static_cast<Handle>(number), 40, 1)}));
  rank.gate.Give(3);
  EXPECT_EQ(Report(0).output.tokens.size(), 1u);
  auto report = Report(0);
  EXPECT_EQ(report.step, 2);
  EXPECT_EQ(report.applied_plan, 5) << "all three";
  EXPECT_EQ(report.output.tokens.size(), 4u);
  EXPECT_TRUE(Report(0).group_idle);
  // While idle, it applies a plan whose number is that of a past or a future step.
  rank.inbox().OnPlan(MakePlan(1, 6, {Request(20, 40, 7)}));
  rank.gate.Give(7);
  for (int64_t step = 4; step <= 10; ++step) EXPECT_EQ(Report(0).step, step);
  for (const int64_t number : {7, 99}) {
    rank.inbox().OnPlan(MakePlan(1, number, {Request(20 + static_cast<Handle>(number), 40, 1)}));
    rank.gate.Give(1);
    report = Report(0);
    EXPECT_EQ(report.applied_plan, number);
    EXPECT_TRUE(report.group_idle);
  }
  EXPECT_EQ(report.step, 12);
}

TEST_F(StepLoopTest, TheWatermarkStaysFreeUnlessTheRankIsEmptyOrTheRequestReserves) {
  Start(1, /*gated=*/false, /*slots=*/8, /*kv_watermark=*/0.25);
  OpenEpoch(1, PlanMode::kLockstep);
  int64_t number = 0;
  const auto rejected = [&](Handle handle, int64_t prompt, int64_t most, bool on_demand) {
    SequenceRequest request = Request(handle, prompt, most);
    request.kv_on_demand = on_demand;
    ranks_[0]->inbox().OnPlan(MakePlan(1, ++number, {request}));
    StepReport report = Report(0);
    EXPECT_THAT(report.output.preempted, IsEmpty());
    return std::move(report.rejected);
  };
  EXPECT_THAT(rejected(10, 480, 2, true), IsEmpty());
  EXPECT_THAT(rejected(11, 200, 100, true), IsEmpty()) << "481 and 200 tokens leave 319";
  const auto refused = rejected(12, 90, 2, true);  // 10 has ended
  EXPECT_THAT(refused, IsEmpty());
  ASSERT_EQ(rejected(13, 480, 2, true).size(), 1u) << "250 of 1,000 stay free";
  EXPECT_THAT(rejected(14, 400, 90, false), IsEmpty()) << "it reserves its largest size";
}

// Short requests run until the rank has fitted the costs of its batches.
TEST_F(StepLoopTest, ALevelBoundsPromptsAndExpiresWithoutPlans) {
  token_budget_ = 400;
  cost_ = {.c_s = 1e-3, .tl_s_per_token = 0, .prefill_s_per_token = 1e-3};
  real_time_ = true;
  Start(1);
  OpenEpoch(1, PlanMode::kPipelined);
  int64_t number = 0;
  std::optional<BatchCost> told;
  const auto step = [&](std::optional<double> level_s, std::vector<SequenceRequest> requests = {}) {
    Plan plan = MakePlan(1, ++number, std::move(requests));
    plan.level_s = level_s;
    ranks_[0]->inbox().OnPlan(plan);
    StepReport report;
    do {
      report = Report(0);
      if (report.batch_cost) told = report.batch_cost;
    } while (report.applied_plan < number);
    return report;
  };
  // A long request keeps the group busy, so that it does not wait for plans.
  step(std::nullopt, {Request(1000, 10, 400)});
  for (Handle i = 0; i < 70; ++i) {
    step(std::nullopt, {Request(10 + i, 5 + static_cast<int64_t>(i * 7 % 36), 1)});
  }
  ASSERT_TRUE(told.has_value());
  const double level_s = told->Seconds(21);
  const StepReport first = step(level_s, {Request(2000, 450, 5)});
  ASSERT_TRUE(first.prefill.has_value());
  EXPECT_LT(first.output.prefill_tokens, 200);
  ASSERT_EQ(first.prefill->prompts.size(), 1u);
  EXPECT_EQ(first.prefill->prompts[0].handle, 2000u);
  // Without further plans the rank returns to its own budget after some steps.
  int64_t most = 0, left = first.prefill->prompts[0].tokens;
  for (int i = 0; i < 40 && left > 0; ++i) {
    const StepReport report = Report(0);
    most = std::max(most, report.output.prefill_tokens);
    left = report.prefill->prompts.empty() ? 0 : report.prefill->prompts[0].tokens;
  }
  EXPECT_EQ(left, 0);
  EXPECT_GT(most, first.output.prefill_tokens);
}

}  // namespace
}  // namespace bfio::worker
