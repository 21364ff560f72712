#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "router/admin/live/history.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::StepSummary Step(uint64_t epoch, uint64_t step, std::vector<uint64_t> loads, std::vector<uint64_t> local,
                     std::vector<uint64_t> wait) {
  v1::StepSummary summary;
  summary.set_epoch(epoch);
  summary.set_step(step);
  summary.mutable_load_tokens()->Add(loads.begin(), loads.end());
  summary.mutable_active_requests()->Resize(static_cast<int>(loads.size()), 1);
  summary.mutable_local_ns()->Add(local.begin(), local.end());
  summary.mutable_barrier_wait_ns()->Add(wait.begin(), wait.end());
  summary.set_assigned(2);
  summary.set_waiting_requests(7);
  return summary;
}

absl::Time At(int64_t ms) {
  return absl::FromUnixMillis(1'000'000 + ms);
}

TEST(LiveHistoryTest, AnIntervalsFigures) {
  LiveHistory history;
  history.OnStep(Step(1, 1, {100, 50}, {1000, 3000}, {2000, 0}), At(0));
  history.OnStep(Step(1, 2, {80, 120}, {1000, 5000}, {4000, 0}), At(20));
  EXPECT_THAT(history.After(0, absl::ZeroDuration()), IsEmpty()) << "the interval is not over";
  history.OnStep(Step(1, 3, {1, 1}, {1, 1}, {0, 0}), At(500));
  const auto samples = history.After(0, absl::ZeroDuration());
  ASSERT_THAT(samples, SizeIs(1));
  const StepSample& sample = *samples[0];
  EXPECT_EQ(sample.number, 1u);
  EXPECT_EQ(sample.step, 2u);
  EXPECT_EQ(sample.steps, 2u);
  EXPECT_EQ(sample.assigned, 4u);
  EXPECT_EQ(sample.waiting_requests, 7u);
  EXPECT_THAT(sample.load_tokens, ElementsAre(80, 120));
  EXPECT_DOUBLE_EQ(sample.idle_fraction, 1 - (75.0 + 100) / (100 + 120));
  EXPECT_DOUBLE_EQ(sample.wait_fraction, 6000.0 / (10000 + 6000));
  EXPECT_DOUBLE_EQ(sample.step_s, 4000e-9);
  EXPECT_EQ(sample.straggler, 1u);
}

TEST(LiveHistoryTest, WhereNobodyWaitsNobodyIsIdleOrSlowest) {
  LiveHistory history;
  for (int i = 0; i < 3; ++i) {
    v1::StepSummary alone = Step(1, 1 + i, {100, 20}, {0, 1000}, {0, 0});
    alone.set_rank(1);
    history.OnStep(alone, At(300 * i));
  }
  const auto samples = history.After(0, absl::ZeroDuration());
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_EQ(samples[0]->idle_fraction, 0);
  EXPECT_FALSE(samples[0]->straggler.has_value());
  EXPECT_DOUBLE_EQ(samples[0]->step_s, 1000e-9);
  EXPECT_THAT(samples[0]->load_tokens, ElementsAre(100, 20));
}

TEST(LiveHistoryTest, ANewEpochClosesTheInterval) {
  LiveHistory history;
  history.OnStep(Step(1, 1, {100, 50}, {1, 2}, {0, 0}), At(0));
  history.OnStep(Step(2, 1, {10}, {1}, {0}), At(1));
  history.OnStep(Step(2, 2, {10}, {1}, {0}), At(900));
  const auto samples = history.After(0, absl::ZeroDuration());
  ASSERT_THAT(samples, SizeIs(2));
  EXPECT_THAT(samples[0]->load_tokens, SizeIs(2));
  EXPECT_THAT(samples[1]->load_tokens, SizeIs(1));
}

TEST(LiveHistoryTest, IsBoundedAndServesFromANumberOn) {
  LiveHistory history;
  const auto steps = static_cast<int64_t>(LiveHistory::kSamples) + 50;
  for (int64_t i = 0; i <= steps; ++i) history.OnStep(Step(1, i, {1}, {1}, {0}), At(500 * i));
  EXPECT_THAT(history.After(0, absl::ZeroDuration()), SizeIs(LiveHistory::kSamples));
  const auto last = static_cast<uint64_t>(steps);
  EXPECT_THAT(history.After(last - 3, absl::ZeroDuration()), SizeIs(3));
  EXPECT_THAT(history.After(last, absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(history.After(last + 1000, absl::ZeroDuration()), SizeIs(LiveHistory::kSamples))
      << "whoever counts by an earlier router's numbers begins anew";
}

TEST(LiveHistoryTest, OddSummariesAreDropped) {
  LiveHistory history;
  history.OnStep(v1::StepSummary(), At(0));
  history.OnStep(Step(1, 1, {1, 2}, {1}, {0}), At(600));
  history.OnStep(Step(1, 1, {0, 0}, {0, 0}, {0, 0}), At(1200));
  history.OnStep(Step(1, 2, {0, 0}, {0, 0}, {0, 0}), At(1800));
  const auto samples = history.After(0, absl::ZeroDuration());
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_EQ(samples[0]->idle_fraction, 0);
  EXPECT_EQ(samples[0]->wait_fraction, 0);
}

TEST(LiveHistoryTest, ANumberOfAnEarlierRoutersWaitsForTheFirstSample) {
  LiveHistory history;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(history.After(1000, absl::Milliseconds(50)), IsEmpty());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(45)) << "it must not spin";
  for (int64_t i = 0; i < 2; ++i) history.OnStep(Step(1, i, {1}, {1}, {0}), At(500 * i));
  EXPECT_THAT(history.After(1000, absl::Seconds(60)), SizeIs(1));
}

TEST(LiveHistoryTest, AWaitEndsWithASampleAndWithClose) {
  LiveHistory history;
  std::thread feeder([&] {
    for (int64_t i = 0; i < 2; ++i) history.OnStep(Step(1, i, {1}, {1}, {0}), At(500 * i));
  });
  EXPECT_THAT(history.After(0, absl::Seconds(60)), SizeIs(1));
  feeder.join();
  std::thread closer([&] { history.Close(); });
  EXPECT_THAT(history.After(1, absl::Seconds(60)), IsEmpty());
  closer.join();
  EXPECT_TRUE(history.closed());
}

}  // namespace
}  // namespace bfio::router
