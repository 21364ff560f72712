// The steps of a group with a barrier: late plans, refusals by workers, step reports to observers, and
// workers of different speed.
#include <map>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/group_time.h"
#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// --- late plans ---

TEST_F(GroupTest, MissingReportsDelayAPlanUpToTheTimeout) {
  BeginWith({"a", "b"});
  Submit(1, 8, 50);
  Steps(3);
  int64_t before = parts["a"];
  ReadAll();
  StepAlone("a");
  EXPECT_EQ(parts["a"], before) << "b has not reported";
  EXPECT_EQ(Wait(), Options().report_timeout);
  EXPECT_EQ(parts["a"], before + 1) << "planned without it";
  EXPECT_EQ(parts["b"], before + 1);
  StepAlone("b");
  EXPECT_EQ(parts["a"], before + 1) << "that plan is out already";
  EXPECT_TRUE(Attached("b"));
  // A report that comes with the timeout, before the decision, is used.
  ReadAll();
  before = parts["a"];
  StepAlone("a");
  decide = false;
  Advance(Options().report_timeout);
  StepAlone("b");
  const int64_t step = last_part["a"].apply_step;
  Decide();
  EXPECT_EQ(parts["a"], before + 1);
  EXPECT_EQ(last_part["a"].apply_step, step + 1) << "no further than the reports allow";
  decide = true;
  EXPECT_EQ(RunAll(), 8u);
}

// --- delayed plans ---

class PutOffTest : public GroupTest {
 protected:
  static constexpr absl::Duration kStep = absl::Milliseconds(20);
  // 3/4 of a step, minus 3 ms.
  static constexpr absl::Duration kMost = absl::Milliseconds(12);

  void StepFor(int steps) {
    for (int i = 0; i < steps; ++i) {
      Step("a");
      Advance(kStep);
    }
  }
  // Serves until plans are delayed by the maximum; the current one is delayed too.
  void ServeForLong(core::PlanMode mode = core::PlanMode::kPipelined) {
    WorldOptions options = With(2);
    options.groups.group.plan_mode = mode;
    Begin(options);
    for (const char* name : {"a", "b"}) Worker(name).kv_tokens = 100'000;
    Serve({"a", "b"});
    Submit(1, 7, 2000);
    StepFor(300);
    Step("a");
    before_ = parts["a"];
  }
  int64_t before_ = 0;
};

TEST_F(PutOffTest, ARequestThatArrivesWhileTheStepRunsIsInTheNextOne) {
  ServeForLong();
  const int64_t step = last_part["a"].apply_step;
  Advance(absl::Milliseconds(5));
  Submit(9, 9);
  EXPECT_EQ(parts["a"], before_) << "more may arrive";
  EXPECT_NEAR(absl::ToDoubleSeconds(Wait()), absl::ToDoubleSeconds(kMost) - 5e-3, 1e-6);
  EXPECT_EQ(parts["a"], before_ + 1);
  EXPECT_EQ(last_part["a"].apply_step, step + 1);
  EXPECT_EQ(last_part["a"].placements.size() + last_part["b"].placements.size(), 1u);
  // A new epoch measures again.
  Kill("b");
  Join("b");
  Form();
  StepFor(5);
  before_ = parts["a"];
  Step("a");
  EXPECT_EQ(parts["a"], before_ + 1);
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_EQ(cluster().totals().late_plans, 0);
}

TEST_F(PutOffTest, AStepThatEndsBeforeItsPlanGetsTheNextOneAtOnce) {
  ServeForLong();
  const int64_t step = last_part["a"].apply_step;
  Submit(9, 9);
  Step("a");
  EXPECT_EQ(parts["a"], before_ + 1);
  EXPECT_EQ(last_part["a"].apply_step, step + 2);
  // No plan is delayed while the short step is among the latest ones; then delays are half as long.
  for (int i = 0; i < 15; ++i) {
    Advance(kStep);
    Step("a");
    EXPECT_EQ(parts["a"], before_ + 2 + i);
  }
  Advance(kStep);
  Step("a");
  EXPECT_EQ(parts["a"], before_ + 16);
  EXPECT_NEAR(absl::ToDoubleSeconds(Wait()), absl::ToDoubleSeconds(kMost) * (0.5 + 16.0 / 256), 1e-4);
  EXPECT_EQ(parts["a"], before_ + 17);
}

TEST_F(PutOffTest, APlanThatWorkersWaitForIsMadeAtOnce) {
  ServeForLong(core::PlanMode::kLockstep);
  Advance(kStep);
  Step("a");
  EXPECT_EQ(parts["a"], before_ + 1);
  ServeForLong();
  for (core::RequestId id = 1; id <= 7; ++id) Cancel(id);
  RunAll();
  EXPECT_EQ(Open(), 0u);
  before_ = parts["a"];
  Submit(9, 9);
  EXPECT_EQ(parts["a"], before_ + 1) << "the group is parked";
}

// --- refusals by workers ---

TEST_F(GroupTest, AStepMayGenerateSeveralTokensOfARequest) {
  BeginWith({"a"}, 4);
  ReadAll();
  Cancel(4);
  StepReport report = Worker("a").Compute();
  report.tokens = {{1, 2}, {2, 1}, {3, 0}, {999, 1}, {3, 3}, {4, 1}};
  report.token_ids = {TokenOf(1, 0), TokenOf(1, 1), TokenOf(2, 0), 7,
                      TokenOf(3, 0), TokenOf(3, 1), TokenOf(3, 2), TokenOf(4, 0)};
  Report("a", report);
  const size_t wanted[] = {2, 1, 3, 0};
  for (core::RequestId id = 1; id <= 4; ++id) EXPECT_EQ(client(id).tokens.size(), wanted[id - 1]) << id;
}

// --- step summaries and telemetry ---

TEST_F(GroupTest, ReportedMeasurementsAreForwardedAndBatchCostsApplyToLaterEpochs) {
  BeginWith({"a", "b"});
  alter = [](SimWorker& worker, StepReport& report) {
    report.prefill_tokens = 7;
    if (worker.name == "b") report.energy = EnergyReading{"gpu", 1, 2, 3};
    if (worker.name == "b") report.batch_cost = GroupCost{{.c_s = 0.01, .a_s_per_token = 3e-5}};
  };
  Submit(1, 8, 100);
  Steps(3);
  const auto cost = [&](core::WorkerIndex rank) { return cluster().group(0)->Account(rank).spec.cost; };
  EXPECT_FALSE(cost(0).has_value());
  ASSERT_FALSE(energy.empty());
  EXPECT_EQ(energy[0].member, MemberOf("b"));
  EXPECT_EQ(energy[0].reading.barrier_j, 2);
  EXPECT_EQ(group().Members()[0].telemetry.step_prefill_tokens, 7);
  EXPECT_EQ(group().Members()[0].telemetry.prefill_tokens % 7, 0);
  for (const bool later : {false, true}) {
    if (later) {
      alter = nullptr;
      Join("c");
      Wait();
      Form();
    }
    ASSERT_TRUE(cost(1).has_value());
    EXPECT_EQ(cost(1)->a_s_per_token, 3e-5);
  }
}

// Ranks report their own times and batches; only the group sees that one rank's prompt holds up all of them.
TEST_F(GroupTest, WhatAStepCostsAllRanksIsFittedAndPlannedWith) {
  const GroupCost cost{{.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 0, .k2_s_per_token = 1e-6},
                       {.padded = true, .prompt_s = 5e-3}};
  BeginWith({"a", "b"});
  Rng rng(1);
  std::map<int64_t, std::vector<BatchLoad>> steps;
  alter = [&](SimWorker& worker, StepReport& report) {
    std::vector<BatchLoad>& batches = steps[report.step];
    while (batches.size() < 2) {
      BatchLoad& batch = batches.emplace_back();
      for (uint64_t i = 1 + rng.Below(20); i > 0; --i) batch.AddDecode(static_cast<int64_t>(rng.Below(500)));
      if (rng.Below(4) == 0) batch.AddPrefill(1 + static_cast<int64_t>(rng.Below(300)), 0);
    }
    report.batch = batches[worker.name == "b"];
    report.local = absl::Seconds(cost.RankSeconds(*report.batch, cost.terms.ModeOf(batches)));
    report.batch_cost = GroupCost{{.c_s = 0.1, .a_s_per_token = 1e-3}};
  };
  const auto spec = [&] { return cluster().group(0)->Account(1).spec; };
  Submit(1, 8, 900);
  Steps(100);
  EXPECT_EQ(spec().cost->c_s, 0.1) << "its own fit";
  EXPECT_EQ(spec().terms, GroupTerms());
  Steps(600);
  for (const bool later : {false, true}) {
    if (later) {
      Join("c");
      Wait();
      Form();
    }
    EXPECT_NEAR(spec().cost->c_s, cost.batch.c_s, 1e-3);
    EXPECT_NEAR(spec().terms.prompt_s, cost.terms.prompt_s, 1e-4);
    EXPECT_TRUE(spec().terms.padded);
  }
  EXPECT_NEAR(*group().predicted_ratio(), 1, 0.01);
}

class WorkerSpeedsTest : public GroupTest {
 protected:
  // Worker b takes `factor` times as long per token as worker a.
  void ServeWith(double factor) {
    Begin(With(2));
    Serve({"a", "b"});
    Submit(1, 8, 100);
    StepsWith(factor);
  }
  void StepsWith(double factor) {
    alter = [factor](SimWorker& worker, StepReport& report) {
      const double tl = (worker.name == "b" ? factor : 1) * 1e-3;
      report.cost.emplace();
      report.cost->c = FittedValue{0.005, 1e-6};
      report.cost->tl = FittedValue{tl, tl * 1e-3};
    };
    Steps(5);
    alter = nullptr;
  }
  const core::WorkerSpec SpecOf(core::WorkerIndex rank) { return cluster().group(0)->Account(rank).spec; }
};

TEST_F(WorkerSpeedsTest, PlansAccountForASlowWorkerAlsoInTheNextEpoch) {
  ServeWith(2);
  const auto b = [&] { return group().Members()[1].telemetry; };
  EXPECT_DOUBLE_EQ(SpecOf(0).time_per_token, 1);
  EXPECT_NEAR(SpecOf(1).time_per_token, 2, 0.01);
  EXPECT_NEAR(b().time.time_per_token, 2, 0.01);
  EXPECT_THAT(log,
              IsSupersetOf({HasSubstr("worker b: step time is now modelled as 2.00 x load + 0 tokens")}));
  EXPECT_GT(b().service_time, 1);
  EXPECT_EQ(SpecOf(1).service_time, b().service_time);
  StepsWith(2.02);
  EXPECT_NEAR(SpecOf(1).time_per_token, 2, 0.001) << "small changes are ignored";
  Join("c");
  Wait();
  Form();
  EXPECT_NEAR(SpecOf(1).time_per_token, 2, 0.01);
  EXPECT_GT(SpecOf(1).service_time, 1);
}

}  // namespace
}  // namespace bfio::router
