// Statistics of a group's steps, and the energy that workers' devices have drawn.
#include "router/group/step_statistics.h"

#include <string>

#include "gtest/gtest.h"
#include "router/group/energy_book.h"

namespace bfio::router {
namespace {

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
