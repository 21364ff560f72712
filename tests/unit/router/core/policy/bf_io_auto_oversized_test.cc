// Which workers bf_io_auto prepares for a request too large for any gap, when, and by how many tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "router/core/policy/bf_io_auto/oversized_requests.h"

namespace bfio::core {
namespace {

constexpr int64_t kOversized = 9'000;

class OversizedRequestsTest : public ::testing::Test {
 protected:
  explicit OversizedRequestsTest(size_t workers = 8) : workers_(workers) {
    for (size_t g = 0; g < workers; ++g) {
      workers_[g].load_tokens = 50'000 - 10 * static_cast<int64_t>(g);
      workers_[g].active = 50;
    }
    Wait(kOversized);
    for (int i = 0; i < 19; ++i) Wait(400);
  }

  void Wait(int64_t prefill, int32_t priority = 0) {
    WaitingView view = {.id = waiting_.size() + 1, .prefill_tokens = prefill, .priority = priority};
    waiting_.push_back(view);
    slacks_.push_back(1e6);
  }
  Snapshot View() const { return {.step = step_, .workers = workers_, .waiting = waiting_}; }
  // Each request grows by a token, and worker g loses `completions` requests that held `held` tokens in all.
  void Pass(size_t g, int32_t completions, int64_t held) {
    oversized_.Remember(View(), {});
    ++step_;
    for (WorkerView& worker : workers_) worker.load_tokens += worker.active;
    workers_[g].active -= completions;
    workers_[g].load_tokens -= held;
    oversized_.Observe(View());
  }
  // The program with the prepared workers; all workers are at the same level.
  Instance Prepare(double admissions = 4) {
    Instance instance;
    std::vector<WorkerIndex> level;
    for (const WorkerView& view : workers_) {
      instance.workers.emplace_back();
      instance.workers.back().load_tokens = view.load_tokens;
      level.push_back(static_cast<WorkerIndex>(level.size()));
    }
    for (const WaitingView& request : waiting_) {
      instance.items.emplace_back();
      instance.items.back().load = request.prefill_tokens;
    }
    if (!level_.empty()) level = level_;
    oversized_.Apply(View(), slacks_, {800, 300}, admissions, level, instance);
    return instance;
  }
  static int64_t Expected(const Instance& instance) {
    return std::count_if(instance.items.begin(), instance.items.end(),
                         [](const SolverItem& item) { return item.reserved_worker != kNoReservedWorker; });
  }

  OversizedRequests oversized_;
  int64_t step_ = 100;
  std::vector<WorkerView> workers_;
  std::vector<WaitingView> waiting_;
  // Steps until each request is overdue.
  std::vector<double> slacks_;
  // The workers at the common level; all of them when empty.
  std::vector<WorkerIndex> level_;
};

TEST_F(OversizedRequestsTest, NoWorkerIsReservedBeforeTheFirstCompletion) {
  slacks_[0] = 0;
  EXPECT_EQ(Expected(Prepare()), 0);
}

TEST_F(OversizedRequestsTest, AnOversizedRequestExceedsTheMeanCompletion) {
  Pass(2, 2, 2'000);
  slacks_[0] = 0;
  const Instance instance = Prepare();
  const WorkerIndex reserved = 2;  // the least loaded
  EXPECT_EQ(Expected(instance), 1);
  EXPECT_EQ(instance.items[0].reserved_worker, reserved);
  EXPECT_EQ(instance.items[0].precounted_tokens, kOversized - 1'000);
  EXPECT_EQ(instance.items[0].LoadOn(reserved), 1'000) << "on the reserved worker it closes an ordinary gap";
  EXPECT_EQ(instance.items[0].LoadOn(0), kOversized);
  EXPECT_EQ(instance.workers[reserved].load_tokens, workers_[reserved].load_tokens + kOversized - 1'000);
}

TEST_F(OversizedRequestsTest, GapFollowsWhatCompletes) {
  Pass(0, 1, 1'000);
  for (int i = 0; i < 40; ++i) {
    workers_[i % 8].active += 10;  // refilled before Remember looks
    workers_[i % 8].load_tokens += 30'000;
    Pass(i % 8, 10, 30'000);
  }
  slacks_[0] = 0;
  // 1 % of the way to 3,000 tokens for each of 400 requests.
  EXPECT_NEAR(static_cast<double>(Prepare().items[0].precounted_tokens), kOversized - 3'000 + 2'000 * 0.018,
              1);
}

TEST_F(OversizedRequestsTest, AdmittedRequestsAreNotTakenForGrowth) {
  oversized_.Remember(View(), std::vector<Assignment>{{1, 3}, {2, 3}});
  ++step_;
  for (WorkerView& worker : workers_) worker.load_tokens += worker.active;
  workers_[3].load_tokens += 2 * 401;
  workers_[3].active += 2;
  workers_[5].load_tokens -= 700;
  workers_[5].active -= 1;
  oversized_.Observe(View());
  slacks_[0] = 0;
  EXPECT_EQ(Prepare().items[0].precounted_tokens, kOversized - 700);
}

TEST_F(OversizedRequestsTest, PrecountedTokensGrowToTheExcessUntilItIsOverdue) {
  Pass(2, 1, 1'000);
  // With 4 admissions per step a worker falls by 4 / 8 * (1,000 - 400) = 300 tokens in six steps out of ten:
  // 16 steps.
  const double sinking = 0.6 * 8'000 / 300;
  for (double slack : {100.0, 16.0, 12.0, 8.0, 1.0, 0.0, -5.0}) {
    slacks_[0] = slack;
    const double share = std::clamp(1 - slack / sinking, 0.0, 1.0);
    EXPECT_NEAR(static_cast<double>(Prepare().items[0].precounted_tokens), 8'000 * share, 1) << slack;
  }
  slacks_[0] = 8;
  EXPECT_GT(Prepare(2).items[0].precounted_tokens, Prepare(4).items[0].precounted_tokens)
      << "slower sinking starts sooner";
}

TEST_F(OversizedRequestsTest, OneWithinTwoDeviationsOfTheGapReservesNoWorker) {
  Pass(2, 1, 1'000);
  slacks_[0] = 0;
  waiting_[0].prefill_tokens = 1'599;
  EXPECT_EQ(Expected(Prepare()), 0);
  waiting_[0].prefill_tokens = 1'600;
  EXPECT_EQ(Expected(Prepare()), 1);
}

TEST_F(OversizedRequestsTest, LowerClassIsNotPreparedFor) {
  Pass(2, 1, 1'000);
  Wait(kOversized, /*priority=*/-1);
  slacks_.back() = -50;
  EXPECT_EQ(Expected(Prepare()), 0);
  waiting_.back().priority = 0;
  EXPECT_EQ(Expected(Prepare()), 1);
}

class LargeGroupTest : public OversizedRequestsTest {
 protected:
  LargeGroupTest() : OversizedRequestsTest(16) {}
};

TEST_F(LargeGroupTest, AnEighthOfTheWorkersPreparesTheLargestAtTheLeastLoaded) {
  Pass(0, 1, 1'000);
  for (int64_t prefill : {5'000, 12'000, 7'000}) Wait(prefill);
  for (size_t i : {0u, 20u, 21u, 22u}) slacks_[i] = 0;
  workers_[6].load_tokens = 40'000;
  workers_[11].load_tokens = 30'000;
  const Instance instance = Prepare();
  EXPECT_EQ(Expected(instance), 2);
  EXPECT_EQ(instance.items[21].reserved_worker, 11);
  EXPECT_EQ(instance.items[0].reserved_worker, 6);
}

TEST_F(LargeGroupTest, OnlyLevelWorkersPrepare) {
  Pass(0, 1, 1'000);
  slacks_[0] = 0;
  workers_[11].load_tokens = 30'000;
  level_ = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(Prepare().items[0].reserved_worker, 0) << "which has just lost a request";
  level_ = {1, 2, 3};
  EXPECT_EQ(Expected(Prepare()), 0) << "too few to spare one";
  level_ = {1, 2, 3, 4};
  EXPECT_EQ(Prepare().items[0].reserved_worker, 4);
}

// --- a group that changes between two decisions is not learnt from ---

TEST_F(OversizedRequestsTest, WorkersThatJoinOrLeaveAreNoCompletions) {
  Pass(2, 1, 1'000);
  slacks_[0] = 0;
  oversized_.Remember(View(), {});
  ++step_;
  workers_.pop_back();
  workers_[0].active -= 10, workers_[0].load_tokens = 0;
  oversized_.Observe(View());
  EXPECT_EQ(Prepare().items[0].precounted_tokens, kOversized - 1'000);
  Pass(1, 1, 1'000);
  EXPECT_EQ(Prepare().items[0].precounted_tokens, kOversized - 1'000) << "learns on";
}

TEST_F(OversizedRequestsTest, StepsThatDoNotAdvanceTeachNothing) {
  Pass(2, 1, 1'000);
  oversized_.Remember(View(), {});
  workers_[0].active -= 10, workers_[0].load_tokens = 0;
  oversized_.Observe(View());
  oversized_.Remember(View(), {});
  workers_[1].active -= 10, workers_[1].load_tokens = 0;
  step_ = 1;  // a new epoch may restart the count
  oversized_.Observe(View());
  slacks_[0] = 0;
  EXPECT_EQ(Prepare().items[0].precounted_tokens, kOversized - 1'000);
}

// Loads that rise without admissions (a report that corrects an account) must not cause a negative gap.
TEST_F(OversizedRequestsTest, LoadsThatRiseAgainstAllAccountsAreIgnored) {
  Pass(2, 1, 1'000);
  Pass(3, 1, -5'000);
  slacks_[0] = 0;
  EXPECT_EQ(Prepare().items[0].precounted_tokens, kOversized - 1'000);
}

}  // namespace
}  // namespace bfio::core
