// The steps of a group with a barrier: late plans, refusals by workers, step reports to observers, and
// workers of different speed.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/group/barrier_group_test.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

// --- late plans ---

TEST_F(BarrierGroupTest, MissingReportsDelayAPlanUpToTheTimeout) {
  Serve({"a", "b"});
  Submit(1, 8, 50);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const int64_t parts = world_->parts["a"];
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  EXPECT_EQ(world_->parts["a"], parts) << "b has not reported";
  EXPECT_EQ(world_->Wait(), options_.group.report_timeout);
  EXPECT_EQ(world_->parts["a"], parts + 1) << "planned without it";
  EXPECT_EQ(world_->parts["b"], parts + 1);
  world_->Report("b", world_->Worker("b").Compute());
  EXPECT_EQ(world_->parts["a"], parts + 1) << "that plan is out already";
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
  EXPECT_TRUE(world_->Attached("b"));
}

TEST_F(BarrierGroupTest, AReportBeforeTheDecisionIsUsed) {
  Serve({"a", "b"});
  Submit(1, 8, 50);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  world_->decide = false;
  world_->Advance(options_.group.report_timeout);
  world_->Report("b", world_->Worker("b").Compute());
  const int64_t parts = world_->parts["a"];
  world_->Decide();
  EXPECT_EQ(world_->parts["a"], parts + 1);
  EXPECT_EQ(world_->last_part["a"].apply_step, 6) << "no further than the reports allow";
}

// --- delayed plans ---

class PutOffTest : public BarrierGroupTest {
 protected:
  static constexpr absl::Duration kStep = absl::Milliseconds(20);
  // 3/4 of a step, minus 3 ms.
  static constexpr absl::Duration kMost = absl::Milliseconds(12);

  void StepFor(int steps) {
    for (int i = 0; i < steps; ++i) {
      world_->Step("a");
      world_->Advance(kStep);
    }
  }
  // Serves until plans are delayed by the maximum; the current one is delayed too.
  void ServeForLong(core::PlanMode mode = core::PlanMode::kPipelined) {
    GroupSetOptions options = Options(2);
    options.group.plan_mode = mode;
    Start(options);
    for (const char* name : {"a", "b"}) world_->Worker(name).kv_tokens = 100'000;
    world_->Serve({"a", "b"});
    Submit(1, 7, 2000);
    StepFor(300);
    world_->Step("a");
  }
};

TEST_F(PutOffTest, ARequestThatArrivesWhileTheStepRunsIsInTheNextOne) {
  ServeForLong();
  const int64_t parts = world_->parts["a"], step = world_->last_part["a"].apply_step;
  world_->Advance(absl::Milliseconds(5));
  Submit(9, 9);
  EXPECT_EQ(world_->parts["a"], parts) << "more may arrive";
  EXPECT_NEAR(absl::ToDoubleSeconds(world_->Wait()), absl::ToDoubleSeconds(kMost) - 5e-3, 1e-6);
  EXPECT_EQ(world_->parts["a"], parts + 1);
  EXPECT_EQ(world_->last_part["a"].apply_step, step + 1);
  EXPECT_EQ(world_->last_part["a"].placements.size() + world_->last_part["b"].placements.size(), 1u);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
  EXPECT_EQ(world_->cluster().totals().late_plans, 0);
}

TEST_F(PutOffTest, AStepThatEndsBeforeItsPlanGetsTheNextOneAtOnce) {
  ServeForLong();
  const int64_t parts = world_->parts["a"], step = world_->last_part["a"].apply_step;
  Submit(9, 9);
  world_->Step("a");
  EXPECT_EQ(world_->parts["a"], parts + 1);
  EXPECT_EQ(world_->last_part["a"].apply_step, step + 2);
  // No plan is delayed while the short step is among the latest ones; then delays are half as long.
  for (int i = 0; i < 15; ++i) {
    world_->Advance(kStep);
    world_->Step("a");
    EXPECT_EQ(world_->parts["a"], parts + 2 + i);
  }
  world_->Advance(kStep);
  world_->Step("a");
  EXPECT_EQ(world_->parts["a"], parts + 16);
  EXPECT_NEAR(absl::ToDoubleSeconds(world_->Wait()), absl::ToDoubleSeconds(kMost) * (0.5 + 16.0 / 256), 1e-4);
  EXPECT_EQ(world_->parts["a"], parts + 17);
}

TEST_F(PutOffTest, AGroupThatWaitsForItsPlanGetsItAtOnce) {
  ServeForLong();
  for (core::RequestId id = 1; id <= 7; ++id) world_->book().Cancel(id);
  world_->Run();
  EXPECT_TRUE(world_->book().live.empty());
  const int64_t parts = world_->parts["a"];
  Submit(9, 9);
  EXPECT_EQ(world_->parts["a"], parts + 1);
}

TEST_F(PutOffTest, APlanThatWorkersWaitForIsMadeAtOnce) {
  ServeForLong(core::PlanMode::kLockstep);
  const int64_t parts = world_->parts["a"];
  world_->Advance(kStep);
  world_->Step("a");
  EXPECT_EQ(world_->parts["a"], parts + 1);
}

TEST_F(PutOffTest, ANewEpochMeasuresAgain) {
  ServeForLong();
  world_->Kill("b");
  world_->Join("b");
  Form();
  StepFor(5);
  const int64_t parts = world_->parts["a"];
  world_->Step("a");
  EXPECT_EQ(world_->parts["a"], parts + 1);
}

// --- refusals by workers ---

TEST_F(BarrierGroupTest, ARequestThatDoesNotFitIsPlacedAgain) {
  Serve({"a", "b"});
  for (const char* name : {"a", "b"})
    world_->Worker(name).refuses = {{1, absl::ResourceExhaustedError("no KV")},
                                    {2, absl::ResourceExhaustedError("")}};
  Submit(1, 4);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_THAT(world_->book().failed, IsEmpty());
}

TEST_F(BarrierGroupTest, AnyOtherRefusalEndsTheRequest) {
  Serve({"a"});
  world_->Worker("a").refuses = {{2, absl::InvalidArgumentError("token 7 is not in the vocabulary")}};
  Submit(1, 3);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 2u);
  EXPECT_EQ(world_->book().failed.at(2), absl::InvalidArgumentError("token 7 is not in the vocabulary"));
}

TEST_F(BarrierGroupTest, PreemptedRequestsResumeWhereTheyStopped) {
  Serve({"a"});
  Submit(1, 4);
  world_->alter = [&](SimWorker& worker, StepReport& report) {
    if (report.step != 5) return;
    for (const core::RequestId id : {4, 3}) {
      // Preempted before the step, which therefore generates no token of it.
      worker.residents.erase(id);
      std::erase_if(report.tokens, [&](const RequestTokens& tokens) { return tokens.id == id; });
      report.token_ids.resize(report.tokens.size());
      report.preempted.push_back(id);
    }
  };
  world_->Run();
  EXPECT_EQ(world_->book().placed_again, 2);
  EXPECT_EQ(world_->book().completed.size(), 4u);
}

TEST_F(BarrierGroupTest, AStepMayGenerateSeveralTokensOfARequest) {
  Serve({"a"});
  Submit(1, 3);
  world_->ReadAll();
  StepReport report = world_->Worker("a").Compute();
  report.tokens = {{1, 2}, {2, 1}, {3, 0}, {999, 1}, {3, 3}};
  report.token_ids = {TokenOf(1, 0), TokenOf(1, 1), TokenOf(2, 0), 7,
                      TokenOf(3, 0), TokenOf(3, 1), TokenOf(3, 2)};
  world_->Report("a", report);
  EXPECT_EQ(world_->book().live.at(1).delivered, 2u);
  EXPECT_EQ(world_->book().live.at(2).delivered, 1u);
  EXPECT_EQ(world_->book().live.at(3).delivered, 3u);
}

TEST_F(BarrierGroupTest, ACancelledRequestIsDroppedAndItsTokensAreIgnored) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->book().Cancel(1);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 7u);
}

// --- step summaries ---

TEST_F(BarrierGroupTest, StepsAreReportedWithTheDecisionThatFollows) {
  Serve({"a", "b"});
  Submit(1, 12, 5);
  world_->Run();
  ASSERT_EQ(static_cast<int64_t>(world_->steps.size()), world_->group().steps().totals().steps);
  ASSERT_GT(world_->steps.size(), 3u);
  EXPECT_EQ(world_->steps[0]->group, 0);
  EXPECT_EQ(world_->steps[0]->epoch, 1u);
  EXPECT_EQ(world_->steps[0]->step, 1);
  EXPECT_EQ(world_->steps[0]->decide, absl::Microseconds(20));
  EXPECT_EQ(world_->steps[0]->active_requests, (std::vector<uint32_t>{4, 4}));
  EXPECT_EQ(world_->steps[0]->waiting_requests, 4);
  EXPECT_EQ(world_->steps.back()->waiting_requests, 0);
  EXPECT_GT(world_->group().steps().totals().saturated_steps, 0);
  EXPECT_GT(world_->group().steps().totals().decisions, 0);
}

TEST_F(BarrierGroupTest, TheShortestStepIsKnownAfterEnoughSteps) {
  Serve({"a", "b"});
  world_->alter = [](SimWorker&, StepReport& report) {
    report.group_max_local = report.step == 7 ? absl::Milliseconds(3) : absl::Milliseconds(10);
  };
  Submit(1, 8, 200);
  for (int i = 0; i < 63; ++i) world_->Step("a");
  EXPECT_EQ(world_->group().shortest_step(), std::nullopt);
  world_->Step("a");
  EXPECT_EQ(world_->group().shortest_step(), absl::Milliseconds(3));
  EXPECT_EQ(world_->groups().shortest_step(), absl::Milliseconds(3));
  world_->Join("c");
  world_->Wait();
  Form();
  EXPECT_EQ(world_->group().shortest_step(), std::nullopt) << "of another membership";
}

TEST_F(BarrierGroupTest, EnergyReadingsAreForwarded) {
  Serve({"a"});
  StepReport report;
  report.epoch = 1;
  report.step = 1;
  report.energy = EnergyReading{"gpu", 1, 2, 3};
  Commands out;
  world_->groups().OnReport(world_->Worker("a").member, report, world_->now, out);
  ASSERT_FALSE(out.empty());
  const auto* energy = std::get_if<EnergyReported>(&out.front());
  ASSERT_NE(energy, nullptr);
  EXPECT_EQ(energy->member, world_->Worker("a").member);
  EXPECT_EQ(energy->reading.barrier_j, 2);
}

TEST_F(BarrierGroupTest, ReportedBatchCostsApplyToLaterPlansAndEpochs) {
  Serve({"a", "b"});
  world_->alter = [](SimWorker& worker, StepReport& report) {
    report.prefill_tokens = 7;
    if (worker.name == "b") report.batch_cost = BatchCost{.c_s = 0.01, .a_s_per_token = 3e-5};
  };
  Submit(1, 8, 100);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const auto cost = [&](core::WorkerIndex rank) {
    return world_->cluster().group(0)->Account(rank).spec.cost;
  };
  EXPECT_FALSE(cost(0).has_value());
  ASSERT_TRUE(cost(1).has_value());
  EXPECT_EQ(cost(1)->a_s_per_token, 3e-5);
  EXPECT_EQ(world_->group().Members()[0].telemetry.step_prefill_tokens, 7);
  EXPECT_EQ(world_->group().Members()[0].telemetry.prefill_tokens % 7, 0);
  world_->alter = nullptr;
  world_->Join("c");
  world_->Wait();
  Form();
  ASSERT_TRUE(cost(1).has_value());
  EXPECT_EQ(cost(1)->a_s_per_token, 3e-5);
}

// --- workers of different speed ---

StepCostEstimate CostOf(double tl) {
  StepCostEstimate cost;
  cost.c = {0.005, 1e-6};
  cost.tl = {tl, tl * 1e-3};
  cost.steps = 1000;
  return cost;
}

class WorkerSpeedsTest : public BarrierGroupTest {
 protected:
  // Worker b takes `factor` times as long per token as worker a.
  void ServeWith(double factor, bool worker_speeds = true) {
    GroupSetOptions options = Options(2);
    options.group.worker_speeds = worker_speeds;
    Start(options);
    factor_ = factor;
    world_->alter = [this](SimWorker& worker, StepReport& report) {
      report.cost = CostOf(worker.name == "b" ? factor_ * 1e-3 : 1e-3);
    };
    world_->Serve({"a", "b"});
    Submit(1, 8, 100);
    for (int i = 0; i < 5; ++i) world_->Step("a");
  }
  double TimeOf(core::WorkerIndex rank) {
    return world_->cluster().group(0)->Account(rank).spec.time_per_token;
  }

  double factor_ = 1;
};

TEST_F(WorkerSpeedsTest, PlansAccountForASlowWorker) {
  ServeWith(2);
  EXPECT_DOUBLE_EQ(TimeOf(0), 1);
  EXPECT_NEAR(TimeOf(1), 2, 0.01);
  EXPECT_NEAR(world_->group().Members()[1].telemetry.time.time_per_token, 2, 0.01);
  EXPECT_THAT(world_->log,
              IsSupersetOf({HasSubstr("worker b: step time is now modelled as 2.00 x load + 0 tokens")}));
  EXPECT_GT(world_->group().Members()[1].telemetry.service_time, 1);
  EXPECT_EQ(world_->cluster().group(0)->Account(1).spec.service_time,
            world_->group().Members()[1].telemetry.service_time);
}

TEST_F(WorkerSpeedsTest, AWorkerKeepsItsSpeedInTheNextEpoch) {
  ServeWith(2);
  world_->alter = nullptr;
  world_->Join("c");
  world_->Wait();
  Form();
  EXPECT_NEAR(TimeOf(1), 2, 0.01);
  EXPECT_GT(world_->cluster().group(0)->Account(1).spec.service_time, 1);
}

TEST_F(WorkerSpeedsTest, SmallChangesOfSpeedAreIgnored) {
  ServeWith(2);
  factor_ = 2.02;
  for (int i = 0; i < 5; ++i) world_->Step("a");
  EXPECT_NEAR(TimeOf(1), 2, 0.001);
}

TEST_F(WorkerSpeedsTest, WithSpeedsOffAllWorkersCountAlike) {
  ServeWith(2, /*worker_speeds=*/false);
  EXPECT_EQ(TimeOf(1), 1);
  EXPECT_TRUE(world_->group().Members()[1].telemetry.cost.has_value()) << "for operators";
}

}  // namespace
}  // namespace bfio::router
