#include <gmock/gmock.h>

#include <chrono>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "router/admin/live/history.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<absl::Duration> Nanoseconds(const std::vector<int64_t>& ns) {
  std::vector<absl::Duration> durations;
  for (const int64_t one : ns) durations.push_back(absl::Nanoseconds(one));
  return durations;
}

StepSummary Step(uint64_t epoch, int64_t step, std::vector<int64_t> loads, const std::vector<int64_t>& local,
                 const std::vector<int64_t>& wait) {
  StepSummary summary;
  summary.epoch = epoch;
  summary.step = step;
  summary.active_requests.assign(loads.size(), 1);
  summary.load_tokens = std::move(loads);
  summary.local = Nanoseconds(local);
  summary.barrier_wait = Nanoseconds(wait);
  summary.assigned = 2;
  summary.waiting_requests = 7;
  return summary;
}

absl::Time At(int64_t ms) {
  return absl::FromUnixMillis(1'000'000 + ms);
}

// Steps of a rank alone, half a second apart: one sample each, but for the last one's.
void Feed(LiveHistory& history, int64_t steps, core::GroupIndex group = 0, int64_t from_ms = 0) {
  for (int64_t i = 0; i < steps; ++i) {
    StepSummary step = Step(1, i, {1}, {1}, {0});
    step.group = group;
    history.OnStep(step, At(from_ms + 500 * i));
  }
}

using Samples = decltype(std::declval<LiveHistory&>().After(0, absl::ZeroDuration()));

Samples All(LiveHistory& history) {
  return history.After(0, absl::ZeroDuration());
}

TEST(LiveHistoryTest, SamplesOfAnInterval) {
  LiveHistory history;
  history.OnStep(Step(1, 1, {100, 50}, {1000, 3000}, {2000, 0}), At(0));
  history.OnStep(Step(1, 2, {80, 120}, {1000, 5000}, {4000, 0}), At(20));
  EXPECT_THAT(All(history), IsEmpty()) << "the interval is not over";
  history.OnStep(Step(1, 3, {1, 1}, {1, 1}, {0, 0}), At(500));
  const Samples samples = All(history);
  ASSERT_THAT(samples, SizeIs(1));
  const StepSample& sample = *samples[0];
  EXPECT_EQ(std::tie(sample.number, sample.step, sample.steps, sample.assigned, sample.waiting_requests),
            std::tuple(1, 2, 2, 4, 7));
  EXPECT_THAT(sample.load_tokens, ElementsAre(80, 120));
  EXPECT_DOUBLE_EQ(sample.idle_fraction, 1 - (75.0 + 100) / (100 + 120));
  EXPECT_DOUBLE_EQ(sample.wait_fraction, 6000.0 / (10000 + 6000));
  EXPECT_DOUBLE_EQ(sample.step_s, 4000e-9);
  EXPECT_EQ(sample.straggler, 1u);
}

TEST(LiveHistoryTest, ANewEpochClosesTheInterval) {
  LiveHistory history;
  history.OnStep(Step(1, 1, {100, 50}, {1, 2}, {0, 0}), At(0));
  history.OnStep(Step(2, 1, {10}, {1}, {0}), At(1));
  history.OnStep(Step(2, 2, {10}, {1}, {0}), At(900));
  const Samples samples = All(history);
  ASSERT_THAT(samples, SizeIs(2));
  EXPECT_THAT(samples[0]->load_tokens, SizeIs(2));
  EXPECT_THAT(samples[1]->load_tokens, SizeIs(1));
}

TEST(LiveHistoryTest, GroupsHaveIntervalsOfTheirOwn) {
  LiveHistory history;
  for (int64_t i = 0; i < 4; ++i) {
    history.OnStep(Step(1, i, {100, 50}, {1000, 3000}, {2000, 0}), At(200 * i));
    StepSummary other = Step(9, i, {10}, {1000}, {0});
    other.group = 1;
    history.OnStep(other, At(200 * i + 100));
  }
  const Samples samples = All(history);
  ASSERT_THAT(samples, SizeIs(2));
  const StepSample &first = *samples[0], &second = *samples[1];
  EXPECT_EQ(std::tie(first.number, first.group, first.steps, first.epoch), std::tuple(1, 0, 3, 1));
  EXPECT_THAT(first.load_tokens, ElementsAre(100, 50));
  EXPECT_EQ(std::tie(second.number, second.group, second.epoch), std::tuple(2, 1, 9));
  EXPECT_THAT(second.load_tokens, ElementsAre(10));
}

TEST(LiveHistoryTest, IsBoundedAndReturnsSamplesAfterANumber) {
  LiveHistory history;
  const uint64_t last = LiveHistory::kSamples + 50;
  Feed(history, static_cast<int64_t>(last) + 1);
  EXPECT_THAT(All(history), SizeIs(LiveHistory::kSamples));
  EXPECT_THAT(history.After(last - 3, absl::ZeroDuration()), SizeIs(3));
  EXPECT_THAT(history.After(last, absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(history.After(last + 1000, absl::ZeroDuration()), SizeIs(LiveHistory::kSamples))
      << "whoever counts by an earlier router's numbers begins anew";
}

TEST(LiveHistoryTest, AWaitEndsWithASampleItsTimeAndWithClose) {
  LiveHistory history;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(history.After(1000, absl::Milliseconds(50)), IsEmpty());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(45)) << "it must not spin";
  std::thread feeder([&] { Feed(history, 2); });
  EXPECT_THAT(history.After(1000, absl::Seconds(60)), SizeIs(1)) << "a number of an earlier router";
  feeder.join();
  std::thread closer([&] { history.Close(); });
  EXPECT_THAT(history.After(1, absl::Seconds(60)), IsEmpty());
  closer.join();
  EXPECT_TRUE(history.closed());
}

}  // namespace
}  // namespace bfio::router
