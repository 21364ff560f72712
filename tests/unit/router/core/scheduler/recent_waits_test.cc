// The reference wait of bf_io_auto compared with a plain implementation: a sort, and a queue.
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
      const int64_t gone = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(queue.size())));
      queue.Cancel(gone);
      for (int64_t i = 0; i < gone; ++i) fcfs.Leave();
    } else if (bursts ? rng.Below(20) == 0 : rng.Below(3) != 0) {
      const int64_t come = static_cast<int64_t>(rng.Below(bursts ? 60 : 6));
      queue.Arrive(come, step);
      for (int64_t i = 0; i < come; ++i) fcfs.Arrive(step);
    }
    ASSERT_EQ(fcfs.size(), queue.size());
    const int64_t admitted = std::min(queue.size(), static_cast<int64_t>(rng.Below(6)));
    queue.Admit(admitted, step);
    fcfs.Decide(step, admitted);
    ASSERT_EQ(fcfs.p99(), queue.p99()) << "decision " << decision;
    longest = std::max(longest, fcfs.p99());
  }
  EXPECT_GT(longest, 0);
}

void Arrive(VirtualFcfs& fcfs, int64_t requests, int64_t step) {
  for (int64_t i = 0; i < requests; ++i) fcfs.Arrive(step);
}

TEST(VirtualFcfsTest, EmptyPoolsAndFullGroupsLeaveItAsItIs) {
  VirtualFcfs fcfs;
  fcfs.Decide(1, 0);
  EXPECT_EQ(fcfs.p99(), 0);
  Arrive(fcfs, 5, 2);
  fcfs.Decide(40, 0);
  EXPECT_EQ(fcfs.p99(), 0) << "no request has been admitted yet";
  fcfs.Decide(42, 5);
  EXPECT_EQ(fcfs.p99(), 40);
  fcfs.Decide(50, 0);
  EXPECT_EQ(fcfs.p99(), 40);
}

TEST(VirtualFcfsTest, CancelledRequestsAreItsOldestAndHaveNoWait) {
  VirtualFcfs fcfs;
  Arrive(fcfs, 10, 0);
  Arrive(fcfs, 2, 100);
  for (int i = 0; i < 10; ++i) fcfs.Leave();
  fcfs.Decide(103, 2);
  EXPECT_EQ(fcfs.p99(), 3);
}

// A backlog that no decision has seen: the router was switched to a policy that asks, or had no free slot.
TEST(VirtualFcfsTest, ArrivalsCountFromTheirOwnStepHoweverLateADecisionComes) {
  VirtualFcfs fcfs;
  Arrive(fcfs, 1, 10);
  Arrive(fcfs, 1, 90);
  fcfs.Decide(100, 2);
  EXPECT_EQ(fcfs.p99(), 90);
}

TEST(VirtualFcfsTest, RequestsThatComeBackWithTheirAgeGoFirst) {
  VirtualFcfs fcfs;
  Arrive(fcfs, 3, 50);
  fcfs.Arrive(20);
  fcfs.Arrive(30);
  fcfs.Decide(60, 1);
  EXPECT_EQ(fcfs.p99(), 40);
  for (int i = 0; i < 4; ++i) fcfs.Leave();
  EXPECT_EQ(fcfs.size(), 0);
}

TEST(VirtualFcfsTest, LongRunWaitRemembersABurstTenTimesAsLong) {
  VirtualFcfs fcfs;
  int64_t step = 1'000;
  // Serves single requests that have waited for `wait` steps, until one of the percentiles is that.
  const auto serve = [&](int64_t wait, auto p99) {
    int64_t requests = 0;
    for (; p99() != wait; ++requests) {
      fcfs.Arrive(++step - wait);
      fcfs.Decide(step, 1);
    }
    return requests;
  };
  for (int i = 0; i < 10'000; ++i) fcfs.Arrive(++step - 90), fcfs.Decide(step, 1);
  EXPECT_EQ(fcfs.long_run_p99(), 90);
  EXPECT_NEAR(static_cast<double>(serve(5, [&] { return fcfs.p99(); })), kQueueMemory * std::log(100), 5);
  EXPECT_EQ(fcfs.long_run_p99(), 90);
  const int64_t more = serve(5, [&] { return fcfs.long_run_p99(); });
  EXPECT_NEAR(static_cast<double>(more), 9 * kQueueMemory * std::log(100), 50);
}

// Of ten thousand a decision, a few thousand requests would be no memory at all.
TEST(VirtualFcfsTest, RemembersDozensOfDecisionsHoweverManyEachAdmits) {
  VirtualFcfs fcfs;
  constexpr int64_t kBusy = 10'000;
  int64_t step = 0;
  for (; step < 300; ++step) {
    Arrive(fcfs, kBusy, step);
    fcfs.Decide(step, kBusy);
  }
  ASSERT_EQ(fcfs.p99(), 0);
  Arrive(fcfs, kBusy, step);
  step += 7;
  fcfs.Decide(step, kBusy);
  ASSERT_EQ(fcfs.p99(), 7);
  int64_t remembered = 0;
  for (; fcfs.p99() == 7 && remembered < 1'000; ++remembered) {
    Arrive(fcfs, kBusy, ++step);
    fcfs.Decide(step, kBusy);
  }
  EXPECT_GE(remembered, 24);
  EXPECT_LE(remembered, 200);
}

}  // namespace
}  // namespace bfio::core
