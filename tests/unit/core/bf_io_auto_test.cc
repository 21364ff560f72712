// bf_io_auto as a policy: single decisions, and a group that it drives for a while.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "tests/testing/mini_group.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

// --- one decision ---

TEST(BfIoAutoTest, ChoosesTheRequestThatClosesTheGap) {
  const PolicyCase gap =
      PolicyCase().Worker(10'000, 0).Worker(4'000, 1).WaitingAll({300, 9'000, 6'000, 2'000});
  EXPECT_THAT(gap.Decide("bf_io_auto"), ElementsAre(-1, -1, 1, -1));
}

TEST(BfIoAutoTest, LowerPriorityNeverTakesTheSlotOfAHigherOne) {
  const PolicyCase classes = PolicyCase()
                                 .Worker(10'000, 0)
                                 .Worker(4'000, 1)
                                 .Waiting(300, 0, 300, /*priority=*/1)
                                 .Waiting(5'000, 0, 5'000, /*priority=*/1)
                                 .Waiting(6'000, 900'000, 6'000, /*priority=*/0);
  EXPECT_THAT(classes.Decide("bf_io_auto"), ElementsAre(-1, 1, -1));
}

TEST(BfIoAutoTest, NoSlotsOrNobodyWaitingIsAnEmptyPlan) {
  EXPECT_THAT(PolicyCase().Worker(1, 0).Waiting(5).Decide("bf_io_auto"), ElementsAre(-1));
  EXPECT_TRUE(PolicyCase().Worker(1, 3).Decide("bf_io_auto").empty());
}

TEST(BfIoAutoTest, DrainingWorkerDoesNotPullTheOthersDown) {
  // The third drains, full or nearly empty; the gap is the second's, against the first.
  for (int64_t draining : {2'000, 60'000, 900'000}) {
    const PolicyCase group = PolicyCase().Worker(60'000, 0).Worker(57'000, 1).Worker(draining, 0).Draining();
    EXPECT_THAT(PolicyCase(group).WaitingAll({100, 3'000, 6'000}).Decide("bf_io_auto"),
                ElementsAre(-1, 1, -1))
        << draining;
  }
}

TEST(BfIoAutoTest, WorkersThatDrainWithMuchLoadLeaveALevelAmongTheOthers) {
  // Most of the group drains at a load that says nothing about the rest.
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
  // In time 20,000, 16,000 and 20,000: the second has the gap, though it holds most tokens.
  const PolicyCase unequal =
      PolicyCase().Worker(10'000, 0).TimePerToken(2).Worker(16'000, 1).Worker(10'000, 1);
  EXPECT_THAT(PolicyCase(unequal).TimePerToken(2).WaitingAll({4'000, 100}).Decide("bf_io_auto"),
              ElementsAre(1, 2));
}

// --- a group over time ---

// Whoever fits among 40 waiting enters every full group of 8 workers with 10 slots each.
class Driven {
 public:
  explicit Driven(std::vector<Machine> machines, uint64_t seed = 3)
      : group(std::move(machines)), policy(*MakePolicy("bf_io_auto", {})), rng_(seed) {}

  Job Random() {
    Job job;
    job.prefill = 1 + static_cast<int64_t>(500 * rng_.Exponential());
    job.output = 1 + static_cast<int64_t>(40 * rng_.Exponential());
    return job;
  }
  std::vector<Admission> Step(size_t waiting = 40) {
    while (group.waiting() < waiting) group.Enqueue(Random());
    return group.Step(*policy);
  }

  MiniGroup group;
  std::unique_ptr<Policy> policy;

 private:
  Rng rng_;
};

std::vector<Machine> Machines(int workers, int32_t slots) {
  return std::vector<Machine>(static_cast<size_t>(workers), Machine{slots});
}

// Requests as large as half a worker's load never fit. They enter when they are due and not before.
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
    EXPECT_LT(wait, 5 * usual + 120) << "twice P, and a hundred if it was spared";
  }
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
  Driven driven(Machines(4, 10));
  for (int i = 0; i < 300; ++i) driven.Step();
  const auto level = [&](int first, int last) {
    double mean = 0;
    for (int i = 0; i < 20; ++i) {
      driven.Step();
      for (int g = first; g <= last; ++g) {
        mean += static_cast<double>(driven.group.Load(g)) / (20 * (last - first + 1));
      }
    }
    return mean;
  };
  const double before = level(0, 3);
  Machine joined;
  joined.slots = 10;
  driven.group.AddWorker(joined);
  EXPECT_GT(level(0, 3), 0.8 * before);
  for (int i = 0; i < 100; ++i) driven.Step();
  EXPECT_NEAR(level(4, 4) / level(0, 3), 1, 0.1);
}

// The one that is ahead goes after the others, and goes.
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
  EXPECT_GE(served, sent - 40) << "nobody is left behind for good";
}

}  // namespace
}  // namespace bfio::core
