// Which workers bf_io_auto prepares for a request too large for any gap, when, and by how many tokens; and
// which workers count for the level.
#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "router/core/policy/bf_io_auto/bf_io_auto.h"
#include "router/core/policy/level_workers.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kOversized = 9'000;

class OversizedRequestsTest : public ::testing::Test {
 protected:
  explicit OversizedRequestsTest(size_t workers = 8) : workers_(workers) {
    for (size_t g = 0; g < workers; ++g) {
      workers_[g].load_tokens = 50'000 - 10 * static_cast<int64_t>(g);
      workers_[g].active = 50;
      level_.push_back(static_cast<WorkerIndex>(g));
    }
    Wait(kOversized);
    slacks_[0] = 0;
    for (int i = 0; i < 19; ++i) Wait(400);
  }

  void Wait(int64_t prefill, int32_t priority = 0) {
    waiting_.push_back({.id = waiting_.size() + 1, .prefill_tokens = prefill, .priority = priority});
    slacks_.push_back(1e6);
  }
  Snapshot View() const { return {.step = step_, .workers = workers_, .waiting = waiting_}; }
  void Complete(size_t g, int32_t requests, int64_t held) {
    workers_[g].active -= requests;
    workers_[g].load_tokens -= held;
  }
  // Each request grows by a token, and worker g loses `completions` requests that held `held` tokens in all.
  void Pass(size_t g, int32_t completions, int64_t held, const std::vector<Assignment>& plan = {}) {
    oversized_.Remember(View(), plan);
    ++step_;
    for (WorkerView& worker : workers_) worker.load_tokens += worker.active;
    for (const Assignment& placed : plan)
      Complete(placed.worker, -1, -waiting_[placed.waiting_index].prefill_tokens - 1);
    Complete(g, completions, held);
    oversized_.Observe(View());
  }
  // The program with the prepared workers.
  Instance Prepare(double admissions = 4) {
    Instance instance;
    instance.workers = workers_;
    for (const WaitingView& request : waiting_) instance.items.push_back({.load = request.prefill_tokens});
    oversized_.Apply(View(), slacks_, {800, 300}, admissions, level_, instance);
    return instance;
  }
  int64_t Precounted() { return Prepare().items[0].precounted_tokens; }
  // Indices of the requests that workers are reserved for.
  std::vector<size_t> Expected() {
    std::vector<size_t> expected;
    const Instance instance = Prepare();
    for (size_t i = 0; i < instance.items.size(); ++i)
      if (instance.items[i].reserved_worker != kNoReservedWorker) expected.push_back(i);
    return expected;
  }

  OversizedRequests oversized_;
  int64_t step_ = 100;
  std::vector<WorkerView> workers_;
  std::vector<WaitingView> waiting_;
  // Steps until each request is overdue.
  std::vector<double> slacks_;
  // The workers at the common level.
  std::vector<WorkerIndex> level_;
};

TEST_F(OversizedRequestsTest, AnOversizedRequestExceedsTheMeanCompletion) {
  EXPECT_THAT(Expected(), IsEmpty()) << "before the first completion";
  Pass(2, 2, 2'000);
  const Instance instance = Prepare();
  const WorkerIndex reserved = 2;  // the least loaded
  EXPECT_THAT(Expected(), ElementsAre(0));
  EXPECT_EQ(instance.items[0].reserved_worker, reserved);
  EXPECT_EQ(instance.items[0].precounted_tokens, kOversized - 1'000);
  EXPECT_EQ(instance.items[0].LoadOn(reserved), 1'000) << "on the reserved worker it closes an ordinary gap";
  EXPECT_EQ(instance.items[0].LoadOn(0), kOversized);
  EXPECT_EQ(instance.workers[reserved].load_tokens, workers_[reserved].load_tokens + kOversized - 1'000);
}

TEST_F(OversizedRequestsTest, GapFollowsWhatCompletes) {
  Pass(0, 1, 1'000);
  for (size_t i = 0; i < 40; ++i) {
    Complete(i % 8, -10, -30'000);  // refilled before Remember looks
    Pass(i % 8, 10, 30'000);
  }
  // 1 % of the way to 3,000 tokens for each of 400 requests.
  EXPECT_NEAR(static_cast<double>(Precounted()), kOversized - 3'000 + 2'000 * 0.018, 1);
}

TEST_F(OversizedRequestsTest, AdmittedRequestsAreNotTakenForGrowth) {
  Pass(5, 1, 700, {{1, 3}, {2, 3}});
  EXPECT_EQ(Precounted(), kOversized - 700);
}

TEST_F(OversizedRequestsTest, PrecountedTokensGrowToTheExcessUntilItIsOverdue) {
  Pass(2, 1, 1'000);
  // With 4 admissions per step a worker falls by 4 / 8 * (1,000 - 400) = 300 tokens in six steps out of ten:
  // 16 steps.
  const double sinking = 0.6 * 8'000 / 300;
  for (const double slack : {100.0, 16.0, 12.0, 8.0, 1.0, 0.0, -5.0}) {
    slacks_[0] = slack;
    EXPECT_NEAR(static_cast<double>(Precounted()), 8'000 * std::clamp(1 - slack / sinking, 0.0, 1.0), 1)
        << slack;
  }
  slacks_[0] = 8;
  EXPECT_GT(Prepare(2).items[0].precounted_tokens, Precounted()) << "slower sinking starts sooner";
}

TEST_F(OversizedRequestsTest, OneWithinTwoDeviationsOfTheGapOrOfALowerClassReservesNoWorker) {
  Pass(2, 1, 1'000);
  waiting_[0].prefill_tokens = 1'599;
  EXPECT_THAT(Expected(), IsEmpty());
  waiting_[0].prefill_tokens = 1'600;
  EXPECT_THAT(Expected(), ElementsAre(0));
  slacks_[0] = 1e6;
  Wait(kOversized, /*priority=*/-1);
  slacks_.back() = -50;
  EXPECT_THAT(Expected(), IsEmpty());
  waiting_.back().priority = 0;
  EXPECT_THAT(Expected(), ElementsAre(20));
}

class LargeGroupTest : public OversizedRequestsTest {
 protected:
  LargeGroupTest() : OversizedRequestsTest(16) {}
};

TEST_F(LargeGroupTest, AnEighthOfTheLevelWorkersPreparesTheLargestAtTheLeastLoaded) {
  Pass(0, 1, 1'000);
  for (const int64_t prefill : {5'000, 12'000, 7'000}) Wait(prefill);
  for (const size_t i : {20u, 21u, 22u}) slacks_[i] = 0;
  workers_[6].load_tokens = 40'000;
  workers_[11].load_tokens = 30'000;
  EXPECT_THAT(Expected(), ElementsAre(0, 21));
  EXPECT_EQ(Prepare().items[21].reserved_worker, 11);
  EXPECT_EQ(Prepare().items[0].reserved_worker, 6);
  level_ = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(Prepare().items[21].reserved_worker, 0) << "which has just lost a request";
  level_ = {1, 2, 3};
  EXPECT_THAT(Expected(), IsEmpty()) << "too few to spare one";
  level_ = {1, 2, 3, 4};
  EXPECT_EQ(Prepare().items[21].reserved_worker, 4);
}

TEST_F(OversizedRequestsTest, AGroupThatChangesBetweenTwoDecisionsIsNotLearntFrom) {
  Pass(2, 1, 1'000);
  const auto changes = [&](auto change) {
    oversized_.Remember(View(), {});
    Complete(0, 10, workers_[0].load_tokens);
    change();
    oversized_.Observe(View());
    EXPECT_EQ(Precounted(), kOversized - 1'000);
    Complete(0, -10, -50'000);
  };
  changes([&] { ++step_, workers_.pop_back(), level_.pop_back(); });
  changes([] {});               // the step does not advance
  changes([&] { step_ = 1; });  // a new epoch may restart the count
  // Loads that rise without admissions (a report that corrects an account) must not cause a negative gap.
  Pass(3, 1, -5'000);
  EXPECT_EQ(Precounted(), kOversized - 1'000);
  Pass(1, 1, 2'000);
  EXPECT_EQ(Precounted(), kOversized - 1'010) << "learns on";
}

// --- the level ---

TEST(LevelWorkersTest, AWorkerBelowHalfTheMedianOrThatDrainsDoesNotCount) {
  LevelWorkers level;
  const auto find = [&](const PolicyCase& group) { return level.Find(group.View().workers); };
  EXPECT_THAT(find(CaseOf({{1'000, 0}, {499, 5}, {500, 1}, {9'000, 0}, {1'000, 0}})),
              ElementsAre(0, 2, 3, 4));
  // If draining workers counted, the median would be 9,000 and no other worker near it.
  PolicyCase drains;
  for (int i = 0; i < 3; ++i) drains.Worker(9'000, 0).Draining();
  EXPECT_THAT(find(drains), IsEmpty());
  EXPECT_THAT(find(drains.Worker(1'000, 1).Worker(800, 1)), ElementsAre(3, 4));
  EXPECT_THAT(find(CaseOf({{0, 1}, {0, 1}})), ElementsAre(0, 1));
  EXPECT_THAT(find({}), IsEmpty());
}

TEST(PoolScaleTest, MeanLengthAndMeanDistanceFromIt) {
  const PoolScale scale = MeasurePool(CaseOf({}, {100, 300, 500}).View().waiting);
  EXPECT_DOUBLE_EQ(scale.mean, 300);
  EXPECT_DOUBLE_EQ(scale.deviation, 400.0 / 3);
  EXPECT_EQ(MeasurePool({}).mean, 0);
  EXPECT_EQ(MeasurePool({}).deviation, 0);
}

}  // namespace
}  // namespace bfio::core
