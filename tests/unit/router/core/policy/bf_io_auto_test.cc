// bf_io_auto as a policy: single decisions, and a group that it drives for a while.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/testing/mini_group.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

// --- one decision ---

TEST(BfIoAutoTest, DrainingWorkerDoesNotPullTheOthersDown) {
  // The third worker drains, nearly empty or full; the gap is that of the second worker below the first.
  for (int64_t draining : {2'000, 60'000, 900'000}) {
    const PolicyCase group = PolicyCase().Worker(60'000, 0).Worker(57'000, 1).Worker(draining, 0).Draining();
    EXPECT_THAT(PolicyCase(group).WaitingAll({100, 3'000, 6'000}).Decide("bf_io_auto"),
                ElementsAre(-1, 1, -1))
        << draining;
  }
}

TEST(BfIoAutoTest, DrainingWorkersDoNotCountForTheLevel) {
  // Most of the group drains, with loads that say nothing about the others.
  PolicyCase group = PolicyCase().Worker(20'000, 0).Worker(17'000, 1);
  for (int i = 0; i < 4; ++i) group.Worker(90'000, 0).Draining();
  EXPECT_THAT(group.WaitingAll({100, 3'000, 6'000}).Decide("bf_io_auto"), ElementsAre(-1, 1, -1));
}

TEST(BfIoAutoTest, WorkerThatHasJustJoinedDoesNotPullTheOthersDown) {
  const PolicyCase joined = PolicyCase().Worker(60'000, 0).Worker(57'000, 1).Worker(0, 1);
  EXPECT_THAT(PolicyCase(joined).WaitingAll({100, 3'000, 200, 9'000, 300}).Decide("bf_io_auto"),
              ElementsAre(-1, 1, -1, 2, -1))
      << "it takes the largest itself";
}

TEST(BfIoAutoTest, UnequalWorkersAreFilledByTimeNotByTokens) {
  // As times 20,000, 16,000 and 20,000: the gap is on the second worker, although it holds the most tokens.
  const PolicyCase unequal =
      PolicyCase().Worker(10'000, 0).TimePerToken(2).Worker(16'000, 1).Worker(10'000, 1);
  EXPECT_THAT(PolicyCase(unequal).TimePerToken(2).WaitingAll({4'000, 100}).Decide("bf_io_auto"),
              ElementsAre(1, 2));
}

TEST(BfIoAutoTest, WorkerWithALongStepOfItsOwnGetsLess) {
  const PolicyCase slow = PolicyCase().Worker(20'000, 0).Worker(15'000, 1).TimeOffset(4'000);
  EXPECT_THAT(PolicyCase(slow).WaitingAll({5'000, 1'000}).Decide("bf_io_auto"), ElementsAre(-1, 1));
}

// --- a group over time ---

// A group whose slots are all taken, and a pool of random requests.
class Driven {
 public:
  explicit Driven(std::vector<Machine> machines, uint64_t seed = 3)
      : group(std::move(machines)), policy(*MakePolicy("bf_io_auto", {})), rng_(seed) {}

  Job Random() {
    return {.prefill = 1 + static_cast<int64_t>(500 * rng_.Exponential()),
            .output = 1 + static_cast<int64_t>(40 * rng_.Exponential())};
  }
  std::vector<Admission> Step(size_t waiting = 40) {
    while (group.waiting() < waiting) group.Enqueue(Random());
    return group.Step(*policy);
  }

  MiniGroup group;
  std::unique_ptr<Policy> policy;
  bool joined = false;

 private:
  Rng rng_;
};

std::vector<Machine> Machines(int workers, int32_t slots) {
  return std::vector<Machine>(static_cast<size_t>(workers), Machine{slots});
}

// Requests of half a worker's load never fit a gap. They enter when they are overdue, not before.
TEST(BfIoAutoDriven, MisfitEntersWhenItIsDue) {
  Driven driven(Machines(3, 10));
  for (int i = 0; i < 400; ++i) driven.Step();
  std::vector<int64_t> waits, misfits;
  for (int i = 0; i < 1'500; ++i) {
    if (i % 500 == 0) driven.group.Enqueue({20'000, 10});
    for (const Admission& admission : driven.Step()) {
      (admission.job.prefill == 20'000 ? misfits : waits).push_back(admission.wait);
    }
  }
  std::sort(waits.begin(), waits.end());
  const int64_t usual = waits[waits.size() / 2];
  ASSERT_EQ(misfits.size(), 3u);
  for (int64_t wait : misfits) {
    EXPECT_GT(wait, usual);
    EXPECT_LT(wait, 5 * usual + 20) << "2.3 P, and a slot of its worker";
  }
}

// One large request holds as much as 25 others. Without preparation it would exceed the group's level by
// nearly all of that.
TEST(BfIoAutoDriven, AnOversizedRequestEntersTheWorkerReservedForIt) {
  constexpr int64_t kOversized = 15'000;
  Driven driven(Machines(12, 60));
  for (int i = 0; i < 300; ++i) driven.Step(120);
  int entered = 0;
  double above = 0;
  for (int i = 0; i < 1'200; ++i) {
    if (i % 150 == 0) driven.group.Enqueue({kOversized, 30});
    for (const Admission& admission : driven.Step(120)) {
      if (admission.job.prefill != kOversized) continue;
      ++entered;
      double mean = 0;
      for (int g = 0; g < 12; ++g) mean += static_cast<double>(driven.group.Load(g)) / 12;
      above += static_cast<double>(driven.group.Load(admission.worker)) - mean;
    }
  }
  ASSERT_GE(entered, 7);
  RecordProperty("above_tokens", static_cast<int>(above / entered));
  EXPECT_LT(above / entered, 0.4 * kOversized);
}

TEST(BfIoAutoDriven, SlowWorkersGetTokensForTheSameTime) {
  std::vector<Machine> machines = Machines(8, 60);
  for (int g = 0; g < 4; ++g) machines[g].time_per_token = 2, machines[g].slots = 30;
  Driven driven(machines);
  double slow = 0, fast = 0, spread = 0;
  for (int i = 0; i < 900; ++i) {
    driven.Step(80);
    if (i < 300) continue;
    double least = HUGE_VAL, most = 0;
    for (int g = 0; g < 8; ++g) {
      const double time = (g < 4 ? 2.0 : 1.0) * static_cast<double>(driven.group.Load(g));
      (g < 4 ? slow : fast) += time;
      least = std::min(least, time), most = std::max(most, time);
    }
    spread += (most - least) / most / 600;
  }
  EXPECT_NEAR(slow / fast, 1, 0.02);
  EXPECT_LT(spread, 0.1);
}

TEST(BfIoAutoDriven, WorkerThatJoinsFillsAndTheOthersKeepTheirLevel) {
  Driven driven(Machines(4, 20));
  // Mean load of the first four workers, and of the fifth.
  const auto loads = [&](int steps) {
    std::pair<double, double> mean = {0, 0};
    for (int i = 0; i < steps; ++i) {
      driven.Step(80);
      for (int g = 0; g < 4; ++g) mean.first += static_cast<double>(driven.group.Load(g)) / (4 * steps);
      if (driven.joined) mean.second += static_cast<double>(driven.group.Load(4)) / steps;
    }
    return mean;
  };
  loads(200);
  const double before = loads(200).first;
  Machine machine = {.slots = 20};
  driven.group.AddWorker(machine);
  driven.joined = true;
  EXPECT_GT(loads(20).first, 0.7 * before);
  const auto [others, joined] = loads(100);
  EXPECT_NEAR(joined / others, 1, 0.1);
}

// Requests of a tenant that is ahead are placed after the others', but they are placed.
TEST(BfIoAutoDriven, TenantThatIsAheadWaitsLongerAndIsServed) {
  Driven driven(Machines(4, 10));
  for (int i = 0; i < 300; ++i) driven.Step();
  double ahead = 0, behind = 0;
  int served = 0, others = 0, sent = 0;
  for (int i = 0; i < 1'000; ++i) {
    for (int pair = 0; pair < 2 && driven.group.waiting() < 40; ++pair) {
      Job job = driven.Random();
      driven.group.Enqueue(job);
      job.tenant_excess = 5'000;
      driven.group.Enqueue(job), ++sent;
    }
    for (const Admission& admission : driven.Step(0)) {
      if (admission.job.tenant_excess > 0) {
        ahead += static_cast<double>(admission.wait), ++served;
      } else {
        behind += static_cast<double>(admission.wait), ++others;
      }
    }
  }
  ASSERT_GT(others, 100);
  EXPECT_GT(ahead / served, 1.5 * behind / others);
  EXPECT_GE(served, sent - 40) << "no request is left behind";
}

}  // namespace
}  // namespace bfio::core
