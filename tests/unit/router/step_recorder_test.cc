#include "router/group/step_recorder.h"

#include <gtest/gtest.h>

#include <numeric>

namespace bfio::router {
namespace {

v1::StepReport Report(uint64_t step, uint64_t load, uint64_t local_ns, uint64_t wait_ns) {
  v1::StepReport report;
  report.set_epoch(1);
  report.set_step(step);
  report.set_load_tokens(load);
  report.set_local_ns(local_ns);
  report.set_barrier_wait_ns(wait_ns);
  return report;
}

struct Fixture {
  std::vector<std::shared_ptr<const v1::StepSummary>> seen;
  StepRecorder recorder{[this](const auto& summary) { seen.push_back(summary); }};
  absl::Time now = absl::UnixEpoch() + absl::Seconds(100);
  Fixture() { recorder.OpenEpoch(1, 2); }
};

TEST(StepRecorder, ImbalanceIsMaxTimesRanksMinusSum) {
  Fixture f;
  f.recorder.OnReport(0, Report(1, 100, 5000, 0), f.now);
  f.recorder.OnDecision(0, 0, absl::ZeroDuration(), false, false);
  EXPECT_TRUE(f.seen.empty()) << "rank 1 has not reported";
  f.recorder.OnReport(1, Report(1, 40, 2000, 3000), f.now);
  f.recorder.OnDecision(3, 7, absl::Microseconds(20), true, true);
  ASSERT_EQ(f.seen.size(), 1u);
  EXPECT_EQ(f.seen[0]->imbalance_tokens(), 60u);
  EXPECT_EQ(f.seen[0]->assigned(), 3u);
  EXPECT_EQ(f.seen[0]->waiting_requests(), 7u);
  EXPECT_EQ(f.recorder.totals().steps(), 1u);
  EXPECT_DOUBLE_EQ(f.recorder.totals().barrier_wait_s(), 3e-6);
  EXPECT_DOUBLE_EQ(f.recorder.totals().rank_step_s(), 10e-6);
  EXPECT_EQ(f.recorder.straggler_steps(0), 1u);
  EXPECT_EQ(f.recorder.totals().saturated_steps(), 1u);
  EXPECT_EQ(f.recorder.totals().decisions(), 2u);
  EXPECT_EQ(f.recorder.totals().decisions_stopped_early(), 1u);
  EXPECT_TRUE(f.seen[0]->stopped_early());
}

TEST(StepRecorder, OnlyProvenDecisionsHaveAGap) {
  Fixture f;
  f.recorder.OnDecision(1, 1, absl::ZeroDuration(), true, false);
  f.recorder.OnDecision(1, 1, absl::ZeroDuration(), true, false, 0.0);
  f.recorder.OnDecision(1, 1, absl::ZeroDuration(), true, false, 0.004);
  v1::Distribution gap;
  f.recorder.FillGap(gap);
  EXPECT_EQ(gap.upper_bounds(0), 0);
  EXPECT_EQ(gap.counts(0), 1u) << "proven best";
  EXPECT_DOUBLE_EQ(gap.sum(), 0.004);
  EXPECT_EQ(std::accumulate(gap.counts().begin(), gap.counts().end(), uint64_t{0}), 2u);
}

TEST(StepRecorder, ReportsOfTwoStepsMayInterleave) {
  Fixture f;
  f.recorder.OnReport(0, Report(1, 1, 1, 0), f.now);
  f.recorder.OnReport(0, Report(2, 1, 1, 0), f.now);
  f.recorder.OnReport(1, Report(1, 1, 1, 0), f.now);
  f.recorder.OnReport(1, Report(2, 1, 1, 0), f.now);
  EXPECT_EQ(f.recorder.totals().steps(), 2u);
}

TEST(StepRecorder, ARankThatLagsFarBehindDoesNotEndTheCount) {
  Fixture f;
  for (uint64_t step = 1; step <= 100; ++step) f.recorder.OnReport(0, Report(step, 1, 1, 0), f.now);
  for (uint64_t step = 1; step <= 100; ++step) f.recorder.OnReport(1, Report(step, 1, 1, 0), f.now);
  EXPECT_EQ(f.recorder.totals().steps(), 64u) << "the newest";
  f.recorder.OnReport(0, Report(101, 1, 1, 0), f.now);
  f.recorder.OnReport(1, Report(101, 1, 1, 0), f.now);
  EXPECT_EQ(f.recorder.totals().steps(), 65u);
}

TEST(StepRecorder, WithoutABarrierEveryReportIsAStep) {
  Fixture f;
  f.recorder.OpenEpoch(1, 2, /*coupled=*/false);
  f.recorder.OnDecision(3, 9, absl::ZeroDuration(), /*saturated=*/false, false);
  f.recorder.OnDecision(1, 8, absl::ZeroDuration(), /*saturated=*/false, false);
  f.recorder.OnReport(1, Report(1, 40, 2000, 0), f.now);
  f.recorder.OnReport(0, Report(7, 100, 5000, 0), f.now, /*saturated=*/true);
  ASSERT_EQ(f.seen.size(), 2u) << "no decision need follow";
  EXPECT_EQ(f.seen[0]->rank(), 1u);
  EXPECT_EQ(f.seen[0]->assigned(), 4u);
  EXPECT_EQ(f.seen[1]->assigned(), 0u) << "once";
  EXPECT_EQ(f.seen[0]->waiting_requests(), 8u);
  EXPECT_EQ(f.seen[1]->waiting_requests(), 8u) << "as the last decision left it";
  EXPECT_EQ(f.recorder.totals().saturated_steps(), 1u) << "of steps, as many as reports";
  EXPECT_EQ(f.seen[1]->rank(), 0u);
  EXPECT_EQ(f.seen[1]->step(), 7u);
  EXPECT_EQ(f.seen[1]->load_tokens(0), 100u);
  EXPECT_EQ(f.seen[1]->load_tokens(1), 40u) << "what it last said";
  EXPECT_EQ(f.seen[1]->local_ns(1), 0u);
  EXPECT_EQ(f.seen[1]->imbalance_tokens(), 0u);
  EXPECT_EQ(f.recorder.totals().steps(), 2u);
  EXPECT_EQ(f.recorder.straggler_steps(0) + f.recorder.straggler_steps(1), 0u);
}

TEST(StepRecorder, AFailedBarrierIsNoStep) {
  Fixture f;
  v1::StepReport failed = Report(1, 1, 1, 0);
  failed.set_barrier_error("peer left");
  f.recorder.OnReport(0, failed, f.now);
  f.recorder.OnReport(1, failed, f.now);
  EXPECT_EQ(f.recorder.totals().steps(), 0u);
}

TEST(RateWindow, CountsTheLastSecond) {
  RateWindow window;
  const absl::Time start = absl::UnixEpoch() + absl::Seconds(1000);
  for (int ms = 0; ms < 3000; ms += 10) window.Add(start + absl::Milliseconds(ms), 2);
  EXPECT_DOUBLE_EQ(window.PerSecond(start + absl::Milliseconds(3000)), 200);
  EXPECT_DOUBLE_EQ(window.PerSecond(start + absl::Milliseconds(3500)), 100);
  EXPECT_DOUBLE_EQ(window.PerSecond(start + absl::Seconds(10)), 0);
}

}  // namespace
}  // namespace bfio::router
