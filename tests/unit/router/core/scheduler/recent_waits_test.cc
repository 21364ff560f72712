// The reference wait of bf_io_auto compared with a plain implementation: a sort, and a queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/virtual_fcfs.h"

namespace bfio::core {
namespace {

// Requests per block of VirtualFcfs when decisions admit few.
constexpr size_t kQueueBlock = 150;

// The samples of the last full block and of the current one.
template <class Samples>
Samples InBlocks(const Samples& samples, size_t block) {
  const size_t full = samples.empty() ? 0 : (samples.size() - 1) / block;
  return Samples(samples.begin() + static_cast<int64_t>((full > 0 ? full - 1 : 0) * block), samples.end());
}

// The smallest sample that at most a share `above` of them exceeds.
int64_t SortedQuantile(std::vector<int64_t> samples, double above) {
  std::sort(samples.begin(), samples.end(), std::greater<>());
  const size_t exceeding = static_cast<size_t>(above * static_cast<double>(samples.size()));
  return exceeding < samples.size() ? samples[exceeding] : 0;
}

// Percentiles are exact below 256 and within 3 % above.
bool Agree(int64_t found, int64_t expected) {
  if (expected < 256) return found == expected;
  return found <= expected && static_cast<double>(found) >= 0.97 * static_cast<double>(expected);
}

class RecentWaitsTest : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RecentWaitsTest, ::testing::Range(uint64_t{1}, uint64_t{11}));

TEST_P(RecentWaitsTest, QuantilesAreThoseOfASortOfTwoBlocks) {
  Rng rng(GetParam());
  RecentWaits waits;
  std::vector<int64_t> samples;
  const auto block = static_cast<int64_t>(std::pow(10, 1 + 2.5 * rng.Uniform()));
  // Half of the seeds stay below 256.
  const int64_t most = GetParam() % 2 == 0 ? 256 : int64_t{1} << (7 + 6 * GetParam());
  EXPECT_EQ(waits.Quantile(0.01), 0) << "nothing before the first sample";
  for (int i = 0; i < 3'000; ++i) {
    const double size = std::pow(static_cast<double>(most), rng.Uniform());
    samples.push_back(std::min(most - 1, static_cast<int64_t>(size) - 1 + (size < 2 ? 0 : 1)));
    waits.Add(samples.back(), block);
    if (i % 97 != 0) continue;
    for (double above : {0.0, 0.01, 0.1, 0.5, 0.9}) {
      const int64_t expected = SortedQuantile(InBlocks(samples, static_cast<size_t>(block)), above),
                    found = waits.Quantile(above);
      EXPECT_TRUE(Agree(found, expected)) << found << ", not " << expected << ": sample " << i;
    }
  }
}

// A reference queue of single requests: the oldest request of the least served tenant goes first.
class Queue {
 public:
  // The charge of a tenant's request; those of tenant 2 are long.
  static double Charge(uint32_t tenant) { return tenant == 2 ? 7 : 2; }

  void Arrive(int64_t step, uint32_t tenant) {
    if (OldestOf(tenant) == queue_.size()) served_[tenant] = std::max(served_[tenant], floor_);
    const auto later = [](const Request& a, const Request& b) { return a.step < b.step; };
    const Request request = {step, tenant};
    queue_.insert(std::upper_bound(queue_.begin(), queue_.end(), request, later), request);
  }
  void Cancel(uint32_t tenant) {
    const size_t own = OldestOf(tenant);
    queue_.erase(queue_.begin() + static_cast<int64_t>(own < queue_.size() ? own : Next()));
  }
  void Admit(int64_t requests, int64_t step) {
    for (int64_t i = 0; i < requests; ++i) {
      const size_t next = Next();
      floor_ = served_[queue_[next].tenant];
      // As long as there is one tenant, nothing is charged.
      if (served_.size() > 1) served_[queue_[next].tenant] += Charge(queue_[next].tenant);
      waits_.push_back(step - queue_[next].step);
      queue_.erase(queue_.begin() + static_cast<int64_t>(next));
    }
    if (requests > 0) p99_ = SortedQuantile(InBlocks(waits_, kQueueBlock), 0.01);
  }
  int64_t size() const { return static_cast<int64_t>(queue_.size()); }
  int64_t p99() const { return p99_; }
  int64_t LongRunP99() const { return SortedQuantile(InBlocks(waits_, 10 * kQueueBlock), 0.01); }
  int64_t NextWait(int64_t step) { return queue_.empty() ? 0 : step - queue_[Next()].step; }

 private:
  struct Request {
    int64_t step;
    uint32_t tenant;
  };
  // Position of the tenant's oldest request; the length of the queue when it has none.
  size_t OldestOf(uint32_t tenant) const {
    size_t i = 0;
    while (i < queue_.size() && queue_[i].tenant != tenant) ++i;
    return i;
  }
  size_t Next() {
    size_t best = 0;
    for (size_t i = 1; i < queue_.size(); ++i) {
      const auto rank = [&](const Request& r) { return std::tuple(served_[r.tenant], r.step, r.tenant); };
      if (rank(queue_[i]) < rank(queue_[best])) best = i;
    }
    return best;
  }

  // In order of arrival.
  std::vector<Request> queue_;
  std::map<uint32_t, double> served_;
  double floor_ = 0;
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
  // Many tenants with few requests each, some of them forgotten in between; a few tenants; or one.
  constexpr uint64_t kTenants[] = {1, 3, 400};
  const uint64_t tenants = kTenants[GetParam() % 3];
  const auto tenant = [&] { return static_cast<uint32_t>(rng.Below(1 + rng.Below(tenants))); };
  int64_t longest = 0;
  for (int decision = 0; decision < 3'000; ++decision) {
    step += 1 + static_cast<int64_t>(rng.Below(3));
    if (cancels && queue.size() > 0 && rng.Below(6) == 0) {
      for (uint64_t gone = 1 + rng.Below(static_cast<uint64_t>(queue.size())); gone > 0; --gone) {
        const uint32_t of = tenant();
        queue.Cancel(of);
        fcfs.Leave(of);
      }
    } else if (bursts ? rng.Below(20) == 0 : rng.Below(3) != 0) {
      for (uint64_t come = rng.Below(bursts ? 60 : 6); come > 0; --come) {
        const uint32_t of = tenant();
        // Some come back with the age that they have.
        const int64_t since = rng.Below(5) == 0 ? step - static_cast<int64_t>(rng.Below(20)) : step;
        queue.Arrive(since, of);
        fcfs.Arrive(since, of);
      }
    }
    ASSERT_EQ(fcfs.size(), queue.size());
    ASSERT_EQ(fcfs.WaitOfNext(step + 1), queue.NextWait(step + 1));
    const int64_t admitted = std::min(queue.size(), static_cast<int64_t>(rng.Below(6)));
    queue.Admit(admitted, step);
    fcfs.Decide(step, admitted, Queue::Charge);
    ASSERT_TRUE(Agree(fcfs.p99(), queue.p99())) << fcfs.p99() << ", decision " << decision;
    if (decision % 100 == 0) {
      ASSERT_TRUE(Agree(fcfs.long_run_p99(), queue.LongRunP99())) << fcfs.long_run_p99() << ", " << decision;
    }
    longest = std::max(longest, fcfs.p99());
  }
  EXPECT_GT(longest, 0);
}

// With ten thousand admissions per decision, a memory of a few thousand requests would cover less than one.
TEST(VirtualFcfsTest, RemembersDozensOfDecisionsHoweverManyEachAdmits) {
  VirtualFcfs fcfs;
  constexpr int64_t kBusy = 10'000;
  const auto decide = [&](int64_t since, int64_t step) {
    for (int64_t i = 0; i < kBusy; ++i) fcfs.Arrive(since);
    fcfs.Decide(step, kBusy);
  };
  int64_t step = 0;
  for (; step < 300; ++step) decide(step, step);
  ASSERT_EQ(fcfs.p99(), 0);
  decide(step, step + 7);
  step += 7;
  ASSERT_EQ(fcfs.p99(), 7);
  int64_t remembered = 0;
  for (; fcfs.p99() == 7 && remembered < 1'000; ++remembered, ++step) decide(step + 1, step + 1);
  EXPECT_GE(remembered, 24);
  EXPECT_LE(remembered, 200);
}

}  // namespace
}  // namespace bfio::core
