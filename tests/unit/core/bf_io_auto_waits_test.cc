// The yardstick of bf_io_auto's fairness against the plain thing: a sort, and a queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/recent_waits.h"
#include "router/core/scheduler/virtual_fcfs.h"

namespace bfio::core {
namespace {

constexpr double kMemory = 333;
// Requests that VirtualFcfs remembers where decisions admit few.
constexpr double kQueueMemory = 150;

// The least sample that at most a share `above` of the weight exceeds, the latest sample weighing most.
int64_t SortedQuantile(const std::vector<int64_t>& samples, double above, double memory = kMemory) {
  std::vector<std::pair<int64_t, double>> weighted;
  double weight = 1, total = 0, beyond = 0;
  for (size_t i = samples.size(); i-- > 0; weight /= 1 + 1 / memory) {
    weighted.push_back({samples[i], weight});
    total += weight;
  }
  std::sort(weighted.begin(), weighted.end(), std::greater<>());
  for (const auto& [sample, w] : weighted) {
    beyond += w;
    if (beyond > above * total) return sample;
  }
  return 0;
}

class RecentWaitsTest : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RecentWaitsTest, ::testing::Range(uint64_t{1}, uint64_t{11}));

TEST_P(RecentWaitsTest, QuantilesAreThoseOfAWeightedSort) {
  Rng rng(GetParam());
  RecentWaits waits;
  std::vector<int64_t> samples;
  const double memory = std::pow(10, 1 + 3 * rng.Uniform());
  // Up to 256 exactly, beyond within 3 %: half the seeds stay below.
  const int64_t most = GetParam() % 2 == 0 ? 256 : int64_t{1} << (9 + 4 * GetParam());
  for (int i = 0; i < 3'000; ++i) {
    const double size = std::pow(static_cast<double>(most), rng.Uniform());
    samples.push_back(std::min(most - 1, static_cast<int64_t>(size) - 1 + (size < 2 ? 0 : 1)));
    waits.Add(samples.back(), memory);
    if (i % 97 != 0) continue;
    for (double above : {0.0, 0.01, 0.1, 0.5, 0.9}) {
      const int64_t expected = SortedQuantile(samples, above, memory), found = waits.Quantile(above);
      if (expected < 256) {
        EXPECT_EQ(found, expected) << "sample " << i << ", above " << above;
      } else {
        EXPECT_LE(found, expected) << "sample " << i << ", above " << above;
        EXPECT_GE(static_cast<double>(found), 0.97 * static_cast<double>(expected)) << "sample " << i;
      }
    }
  }
}

TEST(RecentWaitsTest, NothingBeforeTheFirstSample) {
  const RecentWaits waits;
  EXPECT_EQ(waits.Quantile(0), 0);
  EXPECT_EQ(waits.Quantile(0.01), 0);
}

TEST(RecentWaitsTest, OneHugeSampleIsKeptWithinThreePercent) {
  for (int bits = 8; bits < 62; ++bits) {
    for (int64_t steps : {(int64_t{1} << bits) - 1, int64_t{1} << bits, (int64_t{3} << bits) / 2 + 1}) {
      RecentWaits waits;
      waits.Add(steps, 1);
      const double ratio = static_cast<double>(waits.Quantile(0.01)) / static_cast<double>(steps);
      EXPECT_GT(ratio, 0.97) << steps;
      EXPECT_LE(ratio, 1 + 1e-12) << steps;
    }
  }
}

TEST(RecentWaitsTest, OldSamplesFadeAtTheirRate) {
  RecentWaits waits;
  for (int i = 0; i < 100'000; ++i) waits.Add(50, kMemory);
  // Of all weight, 1 - (1 + 1/333)^-n is younger than n samples: 1 % after four, half after 232, 99 % after
  // 1,536.
  int64_t since = 0;
  const auto until = [&](double above) {
    while (waits.Quantile(above) != 7 && since < 5'000) waits.Add(7, kMemory), ++since;
    return since;
  };
  EXPECT_EQ(until(0.99), 4);
  EXPECT_EQ(until(0.5), 232);
  EXPECT_EQ(until(0.01), 1'536);
}

// Weights grow without bound and are scaled down every 77,000 samples or so.
TEST(RecentWaitsTest, QuantilesSurviveTheRescalingOfWeights) {
  Rng rng(5);
  RecentWaits waits;
  std::vector<int64_t> recent;
  for (int i = 0; i < 400'000; ++i) {
    const int64_t wait = static_cast<int64_t>(rng.Below(100)) + (i / 1'000) % 7;
    waits.Add(wait, kMemory);
    recent.push_back(wait);
    if (recent.size() > 20'000) recent.erase(recent.begin(), recent.begin() + 10'000);
    if (i % 5'003 != 0) continue;
    EXPECT_EQ(waits.Quantile(0.01), SortedQuantile(recent, 0.01)) << "sample " << i;
  }
}

// A first-come queue of single requests.
class Queue {
 public:
  void Arrive(int64_t requests, int64_t step) { queue_.insert(queue_.end(), requests, step); }
  void Cancel(int64_t requests) { queue_.erase(queue_.begin(), queue_.begin() + requests); }
  void Admit(int64_t requests, int64_t step) {
    for (int64_t i = 0; i < requests; ++i) {
      waits_.push_back(step - queue_.front());
      queue_.pop_front();
    }
    if (requests > 0) p99_ = SortedQuantile(waits_, 0.01, kQueueMemory);
  }
  int64_t size() const { return static_cast<int64_t>(queue_.size()); }
  int64_t p99() const { return p99_; }

 private:
  std::deque<int64_t> queue_;
  std::vector<int64_t> waits_;
  int64_t p99_ = 0;
};

class VirtualFcfsTest : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, VirtualFcfsTest, ::testing::Range(uint64_t{1}, uint64_t{13}));

TEST_P(VirtualFcfsTest, WaitsAreThoseOfAQueueThatIsSimulated) {
  Rng rng(GetParam());
  VirtualFcfs fcfs;
  Queue queue;
  int64_t step = 0;
  const bool bursts = rng.Below(2) == 0, cancels = rng.Below(2) == 0;
  int64_t longest = 0;
  for (int decision = 0; decision < 700; ++decision) {
    step += 1 + static_cast<int64_t>(rng.Below(3));
    if (cancels && queue.size() > 0 && rng.Below(6) == 0) {
      queue.Cancel(1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(queue.size()))));
    } else if (bursts ? rng.Below(20) == 0 : rng.Below(3) != 0) {
      queue.Arrive(static_cast<int64_t>(rng.Below(bursts ? 60 : 6)), step);
    }
    const int64_t waiting = queue.size();
    const int64_t admitted = std::min(waiting, static_cast<int64_t>(rng.Below(6)));
    queue.Admit(admitted, step);
    fcfs.Decide(step, waiting, admitted);
    ASSERT_EQ(fcfs.p99(), queue.p99()) << "decision " << decision;
    longest = std::max(longest, fcfs.p99());
  }
  EXPECT_GT(longest, 0);
}

TEST(VirtualFcfsTest, EmptyPoolsAndFullGroupsLeaveItAsItIs) {
  VirtualFcfs fcfs;
  fcfs.Decide(1, 0, 0);
  EXPECT_EQ(fcfs.p99(), 0);
  fcfs.Decide(2, 5, 0);
  fcfs.Decide(40, 5, 0);
  EXPECT_EQ(fcfs.p99(), 0) << "nobody has been admitted yet";
  fcfs.Decide(42, 5, 5);
  EXPECT_EQ(fcfs.p99(), 40);
  fcfs.Decide(50, 0, 0);
  EXPECT_EQ(fcfs.p99(), 40);
}

TEST(VirtualFcfsTest, PoolThatShrinksLosesItsOldestWithoutAWait) {
  VirtualFcfs fcfs;
  fcfs.Decide(0, 10, 0);
  fcfs.Decide(100, 12, 0);  // two more
  fcfs.Decide(101, 2, 0);   // ten cancelled: those of step 0
  fcfs.Decide(103, 2, 2);
  EXPECT_EQ(fcfs.p99(), 3);
}

TEST(VirtualFcfsTest, CancelledUnseenBecauseOthersCameNobodyCountsAsOlderThanTheOldest) {
  VirtualFcfs fcfs;
  fcfs.Decide(0, 10, 0);
  fcfs.Decide(100, 10, 0, /*oldest_step=*/100);  // ten gave up, ten came
  fcfs.Decide(103, 10, 10, /*oldest_step=*/100);
  EXPECT_EQ(fcfs.p99(), 3);
}

// Of ten thousand a decision, a few thousand requests would be no memory at all.
TEST(VirtualFcfsTest, RemembersDozensOfDecisionsHoweverManyEachAdmits) {
  VirtualFcfs fcfs;
  constexpr int64_t kBusy = 10'000;
  int64_t step = 0;
  for (; step < 300; ++step) fcfs.Decide(step, kBusy, kBusy);
  ASSERT_EQ(fcfs.p99(), 0);
  fcfs.Decide(step, kBusy, 0);
  step += 7;
  fcfs.Decide(step, kBusy, kBusy);
  ASSERT_EQ(fcfs.p99(), 7);
  int64_t remembered = 0;
  while (fcfs.p99() == 7 && remembered < 1'000) fcfs.Decide(++step, kBusy, kBusy), ++remembered;
  EXPECT_GE(remembered, 24);
  EXPECT_LE(remembered, 200);
}

}  // namespace
}  // namespace bfio::core
