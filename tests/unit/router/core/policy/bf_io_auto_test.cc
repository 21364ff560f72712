// bf_io_auto over time: a group that it drives for a while.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/testing/mini_group.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

// A group whose slots are all taken, and a pool of random requests.
class Driven {
 public:
  explicit Driven(std::vector<Machine> machines) : group(std::move(machines)) {}
  Driven(size_t workers, int32_t slots) : Driven(std::vector<Machine>(workers, Machine{slots})) {}

  Job Random() {
    return {.prefill = 1 + static_cast<int64_t>(500 * rng_.Exponential()),
            .output = 1 + static_cast<int64_t>(40 * rng_.Exponential())};
  }
  std::vector<Admission> Step(size_t waiting) {
    while (group.waiting() < waiting) group.Enqueue(Random());
    return group.Step(*policy_);
  }
  void Run(int steps, size_t waiting) {
    for (int i = 0; i < steps; ++i) Step(waiting);
  }
  double MeanLoad(WorkerIndex workers) const {
    double sum = 0;
    for (WorkerIndex g = 0; g < workers; ++g) sum += static_cast<double>(group.Load(g));
    return sum / workers;
  }

  MiniGroup group;

 private:
  const std::unique_ptr<Policy> policy_ = PolicyNamed("bf_io_auto");
  Rng rng_{3};
};

// One large request holds as much as 25 others. Without preparation it would exceed the group's level by
// nearly all of that.
TEST(BfIoAutoDriven, AnOversizedRequestEntersTheWorkerReservedForIt) {
  constexpr int64_t kOversized = 15'000;
  Driven driven(12, 60);
  driven.Run(300, 120);
  int entered = 0;
  double above = 0;
  for (int i = 0; i < 1'200; ++i) {
    if (i % 150 == 0) driven.group.Enqueue({kOversized, 30});
    for (const Admission& admission : driven.Step(120)) {
      if (admission.job.prefill != kOversized) continue;
      ++entered;
      above += static_cast<double>(driven.group.Load(admission.worker)) - driven.MeanLoad(12);
    }
  }
  ASSERT_GE(entered, 7);
  EXPECT_LT(above / entered, 0.4 * kOversized);
}

TEST(BfIoAutoDriven, WorkerThatJoinsFillsAndTheOthersKeepTheirLevel) {
  Driven driven(4, 20);
  // The mean loads of the first four workers and of all.
  const auto loads = [&](int steps, WorkerIndex workers) {
    std::pair<double, double> mean = {0, 0};
    for (int i = 0; i < steps; ++i) {
      driven.Step(80);
      mean.first += driven.MeanLoad(4) / steps;
      mean.second += driven.MeanLoad(workers) / steps;
    }
    return mean;
  };
  loads(200, 4);
  const double before = loads(200, 4).first;
  driven.group.AddWorker({.slots = 20});
  EXPECT_GT(loads(20, 5).first, 0.7 * before);
  const auto [others, all] = loads(100, 5);
  EXPECT_NEAR((5 * all - 4 * others) / others, 1, 0.1) << "the fifth";
}

// --- slots for all ---

// Placing the largest first would put the first request where only the second fits.
TEST(BfIoAutoTest, WhereKvBindsAllThatFitAreStillPlaced) {
  PolicyCase tight = PolicyCase().Worker(2'000, 2, 100).Worker(9'000, 2, 60).Worker(10'000, 1, 10);
  tight.Waiting(900, 0, /*kv=*/60).Waiting(500, 0, /*kv=*/100).Waiting(100, 0, /*kv=*/10);
  CheckContract(tight.View(), tight.Call(*PolicyNamed("bf_io_auto")).assignments);
}

// The mean of the largest load of 16 workers of 40 slots, over three seeds.
double MeanLargest(const char* name, double arrivals, int steps, const std::function<Job(Rng&)>& job) {
  double sum = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    MiniGroup group(std::vector<Machine>(16, Machine{40}));
    const auto policy = PolicyNamed(name);
    Rng rng(seed);
    for (int step = 0; step < 2 * steps; ++step) {
      for (double left = arrivals; left > rng.Uniform(); --left) group.Enqueue(job(rng));
      for (const Admission& admission : group.Step(*policy)) EXPECT_EQ(admission.wait, 0);
      int64_t largest = 0;
      for (int g = 0; g < 16; ++g) largest = std::max(largest, group.Load(g));
      if (step >= steps) sum += static_cast<double>(largest) / steps / 3;
    }
  }
  return sum;
}

TEST(BfIoAutoTest, LargestLoadsAreLowerThanUnderLptWhereSomeRequestsAreLargeOrGrow) {
  // A tenth of the slots are taken, and one request in thirty is large.
  const auto large = [](Rng& rng) {
    const int64_t most = rng.Below(30) == 0 ? 9'000 : 600;
    const auto prefill = 1 + static_cast<int64_t>(static_cast<double>(most) * rng.Uniform());
    return Job{.prefill = prefill, .output = 1 + static_cast<int64_t>(50 * rng.Exponential())};
  };
  EXPECT_LT(MeanLargest("bf_io_auto", 1.3, 3'000, large), 0.99 * MeanLargest("lpt", 1.3, 3'000, large));
  // Half of the slots are taken; most tokens of requests are generated, few are prompt tokens.
  const auto grows = [](Rng& rng) {
    return Job{.prefill = 20 + static_cast<int64_t>(100 * rng.Uniform()),
               .output = 300 + static_cast<int64_t>(1'000 * rng.Uniform())};
  };
  EXPECT_LT(MeanLargest("bf_io_auto", 0.4, 5'000, grows), 0.93 * MeanLargest("lpt", 0.4, 5'000, grows));
}

}  // namespace
}  // namespace bfio::core
