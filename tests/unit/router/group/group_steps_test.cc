// The steps of a group with a barrier: late plans, refusals by workers, step reports to observers, and
// workers of different speed.
#include <map>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/group_time.h"
#include "gtest/gtest.h"
#include "router/group/energy_book.h"
#include "router/group/step_statistics.h"
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

// --- statistics of steps ---

// Statistics of a group's steps, and the energy that workers' devices have drawn.

StepReport ReportOf(int64_t step, int64_t load, int64_t local_ns, int64_t wait_ns) {
  return {.epoch = 1,
          .step = step,
          .load_tokens = load,
          .local = absl::Nanoseconds(local_ns),
          .barrier_wait = absl::Nanoseconds(wait_ns),
          .prefill_tokens = load / 10};
}

class StepStatisticsTest : public ::testing::Test {
 protected:
  StepStatisticsTest() { statistics_.OpenEpoch(1, 2); }

  void Report(int32_t rank, const StepReport& report) { statistics_.OnReport(rank, report, now_); }
  void StepAlone(int32_t rank, const StepReport& report, bool saturated = false) {
    statistics_.OnStepAlone(rank, report, now_, saturated, seen_);
  }
  void Decide(int64_t assigned, int64_t waiting, absl::Duration took = absl::ZeroDuration(),
              bool saturated = false, bool stopped_early = false) {
    core::Plan plan;
    plan.placements.resize(static_cast<size_t>(assigned));
    plan.stopped_early = stopped_early;
    statistics_.OnDecision(plan, waiting, took, saturated, seen_);
  }

  StepStatistics statistics_{/*group=*/3};
  StepStatistics::Summaries seen_;
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(100);
};

TEST_F(StepStatisticsTest, ImbalanceIsMaxTimesRanksMinusSum) {
  Report(0, ReportOf(1, 100, 5000, 0));
  Decide(0, 0);
  EXPECT_TRUE(seen_.empty()) << "rank 1 has not reported";
  Report(1, ReportOf(1, 40, 2000, 3000));
  Decide(3, 7, absl::Microseconds(20), true, true);
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0]->group, 3);
  EXPECT_EQ(seen_[0]->imbalance_tokens, 60);
  EXPECT_EQ(seen_[0]->prefill_tokens, (std::vector<int64_t>{10, 4}));
  EXPECT_EQ(seen_[0]->assigned, 3);
  EXPECT_EQ(seen_[0]->waiting_requests, 7);
  EXPECT_EQ(seen_[0]->decide, absl::Microseconds(20));
  EXPECT_TRUE(seen_[0]->stopped_early);
  EXPECT_EQ(seen_[0]->rank, std::nullopt);
  const StepTotals& totals = statistics_.totals();
  EXPECT_EQ(totals.steps, 1);
  EXPECT_EQ(totals.imbalance_tokens, 60);
  EXPECT_EQ(totals.max_load_tokens, 100);
  EXPECT_EQ(totals.mean_load_tokens, 70);
  EXPECT_DOUBLE_EQ(totals.barrier_wait_s, 3e-6);
  EXPECT_DOUBLE_EQ(totals.rank_step_s, 10e-6);
  EXPECT_DOUBLE_EQ(totals.max_local_s, 5e-6);
  EXPECT_EQ(statistics_.straggler_steps(0), 1);
  EXPECT_EQ(statistics_.straggler_steps(1), 0);
  EXPECT_EQ(statistics_.straggler_steps(2), 0) << "there is no such rank";
  EXPECT_EQ(totals.saturated_steps, 1);
  EXPECT_EQ(totals.decisions, 2);
  EXPECT_DOUBLE_EQ(totals.decide_s, 20e-6);
  EXPECT_DOUBLE_EQ(totals.decide_max_s, 20e-6);
  EXPECT_EQ(totals.decisions_stopped_early, 1);
}

TEST_F(StepStatisticsTest, GapsBetweenStepsCountIfReported) {
  StepReport report = ReportOf(1, 1, 1000, 0);
  Report(0, report);
  EXPECT_EQ(statistics_.totals().gap_count, 0);
  report.gap = absl::Nanoseconds(500);
  Report(1, report);
  EXPECT_EQ(statistics_.totals().gap_count, 1);
  EXPECT_DOUBLE_EQ(statistics_.totals().gap_s, 5e-7);
  EXPECT_DOUBLE_EQ(statistics_.totals().rank_step_s, 2.5e-6);
  EXPECT_EQ(statistics_.distributions().gap_s.count(), 1u);
  EXPECT_EQ(statistics_.distributions().local_s.count(), 2u);
}

TEST_F(StepStatisticsTest, ReportsOfSeveralStepsMayInterleave) {
  for (int64_t step = 1; step <= 100; ++step) Report(0, ReportOf(step, 1, 1, 0));
  for (int64_t step = 1; step <= 100; ++step) Report(1, ReportOf(step, 1, 1, 0));
  EXPECT_EQ(statistics_.totals().steps, 64) << "the newest";
  Report(0, ReportOf(101, 1, 1, 0));
  Report(1, ReportOf(101, 1, 1, 0));
  EXPECT_EQ(statistics_.totals().steps, 65);
}

TEST_F(StepStatisticsTest, LateTokensOfTheEpochBeforeCountButTheirStepsDoNot) {
  statistics_.OpenEpoch(2, 1);
  StepReport late = ReportOf(1, 1, 1, 0);
  late.token_ids = {1, 2, 3};
  Report(0, late);
  EXPECT_EQ(statistics_.totals().generated_tokens, 3);
  EXPECT_EQ(statistics_.totals().steps, 0);
}

TEST_F(StepStatisticsTest, WithoutABarrierEveryReportIsAStep) {
  Decide(3, 9);
  Decide(1, 8);
  StepAlone(1, ReportOf(1, 40, 2000, 0));
  StepAlone(0, ReportOf(7, 100, 5000, 0), /*saturated=*/true);
  ASSERT_EQ(seen_.size(), 2u) << "no decision need follow";
  EXPECT_EQ(seen_[0]->rank, 1);
  EXPECT_EQ(seen_[0]->assigned, 4);
  EXPECT_EQ(seen_[1]->assigned, 0) << "once";
  EXPECT_EQ(seen_[0]->waiting_requests, 8);
  EXPECT_EQ(seen_[1]->waiting_requests, 8) << "as the last decision left it";
  EXPECT_EQ(statistics_.totals().saturated_steps, 1) << "of steps, as many as reports";
  EXPECT_EQ(seen_[1]->rank, 0);
  EXPECT_EQ(seen_[1]->step, 7);
  EXPECT_EQ(seen_[1]->load_tokens[0], 100);
  EXPECT_EQ(seen_[1]->load_tokens[1], 40) << "what it last said";
  EXPECT_EQ(seen_[1]->local[1], absl::ZeroDuration());
  EXPECT_EQ(seen_[1]->imbalance_tokens, 0);
  EXPECT_EQ(statistics_.totals().steps, 2);
  EXPECT_EQ(statistics_.straggler_steps(0) + statistics_.straggler_steps(1), 0);
}

TEST_F(StepStatisticsTest, AParkedGroupReportsStepsThatAwaitedADecision) {
  Report(0, ReportOf(1, 1, 1, 0));
  Report(1, ReportOf(1, 1, 1, 0));
  statistics_.OnParked(5, seen_);
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0]->waiting_requests, 5);
  statistics_.OnParked(5, seen_);
  EXPECT_EQ(seen_.size(), 1u) << "once";
}

TEST_F(StepStatisticsTest, AFailedBarrierIsNotAStep) {
  StepReport failed = ReportOf(1, 1, 1, 0);
  failed.barrier_error = "peer left";
  Report(0, failed);
  Report(1, failed);
  StepAlone(0, failed);
  EXPECT_EQ(statistics_.totals().steps, 0);
  EXPECT_TRUE(seen_.empty());
}

TEST(RateWindow, CountsTheLastSecond) {
  RateWindow window;
  const absl::Time start = absl::UnixEpoch() + absl::Seconds(1000);
  for (int ms = 0; ms < 3000; ms += 10) window.Add(start + absl::Milliseconds(ms), 2);
  EXPECT_DOUBLE_EQ(window.PerSecond(start + absl::Milliseconds(3000)), 200);
  EXPECT_DOUBLE_EQ(window.PerSecond(start + absl::Milliseconds(3500)), 100);
  EXPECT_DOUBLE_EQ(window.PerSecond(start + absl::Seconds(10)), 0);
}

EnergyReading Reading(const std::string& device, double scale) {
  return {.device = device, .busy_j = 100 * scale, .barrier_j = 10 * scale, .parked_j = scale};
}

TEST(EnergyBook, ASharedDeviceIsCountedOnce) {
  constexpr MemberId kA = 1, kB = 2, kC = 3;
  EnergyBook book;
  EXPECT_FALSE(book.totals().has_value());
  EXPECT_EQ(book.Of(kA), nullptr);
  // Energy drawn before the first reading does not belong to this router's time.
  book.Take(kA, Reading("x", 7));
  book.Take(kB, Reading("x", 7));
  book.Take(kC, Reading("y", 7));
  ASSERT_TRUE(book.totals().has_value());
  EXPECT_EQ(book.totals()->busy_j, 0);
  book.Take(kA, Reading("x", 9));
  book.Take(kB, Reading("x", 9));
  book.Take(kC, Reading("y", 8));
  EXPECT_DOUBLE_EQ(book.totals()->busy_j, 100 * 3);
  EXPECT_DOUBLE_EQ(book.totals()->barrier_j, 10 * 3);
  EXPECT_DOUBLE_EQ(book.totals()->parked_j, 3);
  // A lower counter is that of a restarted worker; another name, that of another device.
  book.Take(kC, Reading("y", 1));
  book.Take(kC, Reading("z", 100));
  EXPECT_DOUBLE_EQ(book.totals()->busy_j, 100 * 3);
  book.Take(kC, Reading("z", 101));
  EXPECT_DOUBLE_EQ(book.totals()->busy_j, 100 * 4);
  EXPECT_EQ(book.Of(kC)->device, "z");
  // Only one worker is left on device x.
  book.Forget(kB);
  book.Take(kA, Reading("x", 10));
  EXPECT_DOUBLE_EQ(book.totals()->busy_j, 100 * 5);
}

}  // namespace
}  // namespace bfio::router
