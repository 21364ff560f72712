// The step loop against the local barrier, the sim engine without real time, and a router made of test code.
#include "worker/link/step_loop.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/barrier/local/local_barrier.h"
#include "worker/engine/sim/sim_engine.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A net under hangs, not a performance bound.
constexpr absl::Duration kForever = absl::Seconds(60);

// Keeps what the loop sends.
class FakeLink final : public StepLink {
 public:
  void Send(uint64_t stream, OutMessage message) override {
    MutexLock lock(&mutex_);
    streams_.push_back(stream);
    messages_.push_back(std::move(message));
  }

  // The next message, which must be a T.
  template <typename T>
  T Next() {
    MutexLock lock(&mutex_);
    const auto some = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&some), kForever)) {
      ADD_FAILURE() << "no message came";
      return T();
    }
    OutMessage message = std::move(messages_.front());
    messages_.pop_front();
    last_stream_ = streams_.front();
    streams_.pop_front();
    T* wanted = std::get_if<T>(&message);
    EXPECT_NE(wanted, nullptr) << "another kind of message came: " << message.index();
    return wanted == nullptr ? T() : std::move(*wanted);
  }
  bool Empty() {
    MutexLock lock(&mutex_);
    return messages_.empty();
  }
  uint64_t last_stream() {
    MutexLock lock(&mutex_);
    return last_stream_;
  }

 private:
  Mutex mutex_;
  std::deque<OutMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Local compute that a test can hold up: each step takes a ticket, and there are as many as the test gives.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
  }
  void Give(int tickets) {
    MutexLock lock(&mutex_);
    tickets_ += tickets;
  }
  void Take() {
    MutexLock lock(&mutex_);
    ++waiting_;
    const auto pass = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ || tickets_ > 0; };
    mutex_.Await(absl::Condition(&pass));
    if (!open_) --tickets_;
    --waiting_;
  }
  // Returns when some step is in its local compute.
  void AwaitWaiting() {
    MutexLock lock(&mutex_);
    const auto waiting = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ > 0; };
    mutex_.Await(absl::Condition(&waiting));
  }

 private:
  Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  int tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GatedTimer final : public StepTimer {
 public:
  explicit GatedTimer(Gate* gate) : gate_(gate) {}
  int64_t NowNs() override { return 0; }
  void SleepUntilNs(int64_t) override { gate_->Take(); }

 private:
  Gate* const gate_;
};

struct TestRank {
  Gate gate;
  FakeLink link;
  std::unique_ptr<StepLoop> loop;
  std::thread thread;
  absl::Status ended;
  std::string offer;

  Inbox& inbox() { return loop->inbox(); }
};

class StepLoopTest : public ::testing::Test {
 protected:
  // Starts `count` ranks, greeted; their gates are open unless `gated`.
  void Start(int count, bool gated = false, int32_t slots = 2, const KvAdmissionOptions& admission = {}) {
    for (int i = 0; i < count; ++i) {
      auto rank = std::make_unique<TestRank>();
      if (!gated) rank->gate.Open();
      SimOptions options;
      options.limits = {slots, 1000, 500};
      auto engine = SimEngine::Create(options, std::make_unique<GatedTimer>(&rank->gate));
      ASSERT_TRUE(engine.ok());
      rank->loop = std::make_unique<StepLoop>(
          StepLoopOptions{absl::StrCat("w", i), "1.2.3", nullptr, nullptr, 1 << 20, admission},
          *std::move(engine), std::make_unique<LocalBarrierEndpoint>(hub_), rank->link);
      rank->thread = std::thread([r = rank.get()] { r->ended = r->loop->Run(); });
      ranks_.push_back(std::move(rank));
      ranks_[i]->inbox().OnStreamUp(1);
      ranks_[i]->offer = ranks_[i]->link.Next<Hello>().communicator_offer;
    }
  }

  void TearDown() override {
    for (auto& rank : ranks_) rank->gate.Open();
    for (auto& rank : ranks_) rank->inbox().OnShutdown("test is over");
    for (auto& rank : ranks_) rank->thread.join();
  }

  Epoch MakeEpoch(int rank, uint64_t epoch, PlanMode mode) {
    Epoch message;
    message.group = {epoch, rank, static_cast<int32_t>(ranks_.size()), ranks_[0]->offer};
    message.plan_mode = mode;
    message.form_timeout = message.step_timeout = kForever;
    return message;
  }

  // Opens an epoch on all ranks and waits until it is formed.
  void OpenEpoch(uint64_t epoch, PlanMode mode) {
    for (int i = 0; i < size(); ++i) ranks_[i]->inbox().OnEpoch(MakeEpoch(i, epoch, mode));
    for (auto& rank : ranks_) {
      const auto ready = rank->link.Next<EpochReady>();
      EXPECT_EQ(ready.epoch, epoch);
      EXPECT_EQ(ready.error, "");
      rank->offer = ready.communicator_offer;
    }
  }

  static Plan MakePlan(uint64_t epoch, int64_t step, std::vector<SequenceRequest> assignments = {}) {
    return {epoch, step, std::move(assignments), {}};
  }
  static SequenceRequest Request(Handle handle, int64_t prompt, int64_t output) {
    SequenceRequest request;
    request.handle = handle;
    request.prompt_length = prompt;
    request.max_new_tokens = output;
    return request;
  }
  // The same empty plan to all.
  void PlanForAll(uint64_t epoch, int64_t step) {
    for (auto& rank : ranks_) rank->inbox().OnPlan(MakePlan(epoch, step));
  }
  StepReport Report(int rank) { return ranks_[rank]->link.Next<StepReport>(); }
  int size() const { return static_cast<int>(ranks_.size()); }

  std::shared_ptr<LocalHub> hub_ = std::make_shared<LocalHub>();
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

TEST_F(StepLoopTest, HelloSaysWhoAndWhat) {
  Start(1);
  ranks_[0]->inbox().OnStreamUp(2);
  const auto hello = ranks_[0]->link.Next<Hello>();
  EXPECT_EQ(ranks_[0]->link.last_stream(), 2u);
  EXPECT_EQ(hello.worker_id, "w0");
  EXPECT_EQ(hello.limits.slots, 2);
  EXPECT_EQ(hello.limits.kv_tokens, 1000);
  EXPECT_EQ(hello.engine, "sim");
  EXPECT_EQ(hello.barrier, "local");
  EXPECT_EQ(hello.version, "1.2.3");
  EXPECT_THAT(hello.active, IsEmpty());
}

TEST_F(StepLoopTest, LockstepAppliesEachPlanAtItsStepAndReportsTheSums) {
  Start(2);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 3)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  auto a = Report(0), b = Report(1);
  EXPECT_EQ(a.step, 1);
  EXPECT_EQ(a.applied_plan, 1);
  ASSERT_EQ(a.output.tokens.size(), 1u);
  EXPECT_EQ(a.output.tokens[0].handle, 10u);
  EXPECT_EQ(a.output.load_tokens, 100);
  EXPECT_EQ(a.output.prefill_tokens, 100);
  EXPECT_EQ(a.active_requests, 1);
  EXPECT_EQ(a.free_slots, 1);
  EXPECT_EQ(a.free_kv_tokens, 1000 - 102);
  EXPECT_FALSE(a.gap_ns.has_value());
  EXPECT_FALSE(a.group_idle);
  EXPECT_EQ(b.output.load_tokens, 0);
  for (const auto& report : {a, b}) {
    EXPECT_EQ(report.group.max_load_tokens, 100);
    EXPECT_EQ(report.group.sum_load_tokens, 100);
    EXPECT_EQ(report.barrier_error, "");
  }
  EXPECT_GE(a.group.max_local_ns, a.local_ns);
  EXPECT_EQ(a.group.sum_local_ns, a.local_ns + b.local_ns);

  ranks_[0]->inbox().OnPlan(MakePlan(1, 2));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 50, 1)}));
  a = Report(0), b = Report(1);
  EXPECT_EQ(a.group.sum_load_tokens, 151);
  EXPECT_TRUE(a.gap_ns.has_value());
  ASSERT_EQ(b.output.finished.size(), 1u);
  EXPECT_EQ(b.output.finished[0].handle, 11u);
  EXPECT_EQ(b.active_requests, 0);

  PlanForAll(1, 3);
  a = Report(0), b = Report(1);
  EXPECT_EQ(a.output.finished.size(), 1u);
  EXPECT_TRUE(a.group_idle);
  EXPECT_TRUE(b.group_idle);
}

TEST_F(StepLoopTest, LockstepDoesNotStepWithoutItsPlan) {
  Start(1);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 9)}));
  EXPECT_EQ(Report(0).step, 1);
  // It cannot have stepped: a plan that comes later still decides what step 2 does.
  ranks_[0]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 30, 9)}));
  const auto report = Report(0);
  EXPECT_EQ(report.step, 2);
  EXPECT_EQ(report.output.tokens.size(), 2u);
}

TEST_F(StepLoopTest, LockstepGivesUpWhenThePlanDoesNotCome) {
  Start(1);
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kLockstep);
  epoch.step_timeout = absl::Milliseconds(20);
  ranks_[0]->inbox().OnEpoch(epoch);
  EXPECT_EQ(ranks_[0]->link.Next<EpochReady>().error, "");
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 9)}));
  EXPECT_EQ(Report(0).barrier_error, "");
  const auto report = Report(0);
  EXPECT_EQ(report.step, 2);
  EXPECT_THAT(report.barrier_error, HasSubstr("no plan for step 2"));
  EXPECT_EQ(report.active_requests, 1);
  // The request is still there for the next epoch.
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 2, PlanMode::kLockstep));
  const auto ready = ranks_[0]->link.Next<EpochReady>();
  ASSERT_EQ(ready.active.size(), 1u);
  EXPECT_EQ(ready.active[0].handle, 10u);
  EXPECT_EQ(ready.active[0].generated_tokens, 1);
  EXPECT_EQ(ready.active[0].kv_tokens, 101);
}

TEST_F(StepLoopTest, PipelinedStepsWithoutWaitingAndAppliesAtTheRightStep) {
  Start(2, /*gated=*/true);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  // Two steps ahead of its time: must not be applied before step 3.
  ranks_[1]->inbox().OnPlan(MakePlan(1, 3, {Request(11, 40, 50)}));
  std::vector<int64_t> loads, applied;
  for (int step = 1; step <= 4; ++step) {
    for (auto& rank : ranks_) rank->gate.Give(1);
    EXPECT_EQ(Report(0).step, step);
    const auto report = Report(1);
    loads.push_back(report.output.load_tokens);
    applied.push_back(report.applied_plan);
  }
  EXPECT_THAT(loads, ElementsAre(0, 0, 40, 41));
  EXPECT_THAT(applied, ElementsAre(1, 1, 3, 3));
}

TEST_F(StepLoopTest, PipelinedAppliesALatePlanAtTheNextBoundary) {
  Start(1, /*gated=*/true);
  OpenEpoch(1, PlanMode::kPipelined);
  auto& rank = *ranks_[0];
  rank.inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50)}));
  rank.gate.Give(3);
  for (int step = 1; step <= 3; ++step) EXPECT_EQ(Report(0).applied_plan, 1);
  rank.gate.AwaitWaiting();                                    // in the local part of step 4
  rank.inbox().OnPlan(MakePlan(1, 3, {Request(11, 40, 50)}));  // late by two
  rank.gate.Give(2);
  auto report = Report(0);
  EXPECT_EQ(report.applied_plan, 1);
  EXPECT_EQ(report.output.tokens.size(), 1u);
  report = Report(0);
  EXPECT_EQ(report.step, 5);
  EXPECT_EQ(report.applied_plan, 3);
  EXPECT_EQ(report.output.tokens.size(), 2u);
}

TEST_F(StepLoopTest, AloneItAppliesPlansAsTheyComeWhateverTheirNumbers) {
  Start(1, /*gated=*/true, /*slots=*/4);
  auto& rank = *ranks_[0];
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kPipelined);
  epoch.uncoupled = true;
  rank.inbox().OnEpoch(epoch);
  EXPECT_EQ(rank.link.Next<EpochReady>().error, "");
  rank.inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 3)}));
  rank.gate.AwaitWaiting();  // in the local part of step 1
  for (int64_t number = 3; number <= 5; ++number)
    rank.inbox().OnPlan(MakePlan(1, number, {Request(10 + static_cast<Handle>(number), 40, 1)}));
  rank.gate.Give(3);
  EXPECT_EQ(Report(0).output.tokens.size(), 1u);
  auto report = Report(0);
  EXPECT_EQ(report.step, 2);
  EXPECT_EQ(report.applied_plan, 5) << "all three";
  EXPECT_EQ(report.output.tokens.size(), 4u);
  EXPECT_TRUE(Report(0).group_idle);
  // Idle, it goes on with a plan that has the number of a step long past, or of one to come.
  rank.inbox().OnPlan(MakePlan(1, 6, {Request(20, 40, 7)}));
  rank.gate.Give(7);
  for (int64_t step = 4; step <= 10; ++step) EXPECT_EQ(Report(0).step, step);
  for (const int64_t number : {7, 99}) {
    rank.inbox().OnPlan(MakePlan(1, number, {Request(20 + static_cast<Handle>(number), 40, 1)}));
    rank.gate.Give(1);
    report = Report(0);
    EXPECT_EQ(report.applied_plan, number);
    EXPECT_TRUE(report.group_idle);
  }
  EXPECT_EQ(report.step, 12);
}

TEST_F(StepLoopTest, AnIdleGroupParksOnAllRanksAndWakesTogether) {
  Start(3);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 2)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  ranks_[2]->inbox().OnPlan(MakePlan(1, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Report(i).group_idle);
    EXPECT_TRUE(Report(i).group_idle);
  }
  // An old plan does not wake it (it is applied when a new one does).
  ranks_[1]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 7, 1)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 3));
  ranks_[0]->inbox().OnPlan(MakePlan(1, 3));
  ranks_[2]->inbox().OnPlan(MakePlan(1, 3, {Request(12, 9, 1)}));
  for (int i = 0; i < 3; ++i) {
    const auto report = Report(i);
    EXPECT_EQ(report.step, 3);
    EXPECT_EQ(report.applied_plan, 3);
    EXPECT_EQ(report.group.sum_load_tokens, 16);
    EXPECT_FALSE(report.gap_ns.has_value()) << "an idle wait is no gap";
    EXPECT_TRUE(report.group_idle);
  }
  for (auto& rank : ranks_) EXPECT_TRUE(rank->link.Empty());
}

TEST_F(StepLoopTest, AnAssignmentForALaterStepKeepsTheGroupAwake) {
  Start(2);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  ranks_[0]->inbox().OnPlan(MakePlan(1, 3, {Request(10, 100, 1)}));
  // Rank 0 wakes by the plan for step 3, rank 1 by the one for step 1; both step through to it.
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < 2; ++i) {
      const auto report = Report(i);
      EXPECT_EQ(report.step, step);
      EXPECT_EQ(report.group_idle, step == 3);
      EXPECT_EQ(report.group.sum_load_tokens, step == 3 ? 100 : 0);
    }
  }
}

TEST_F(StepLoopTest, CancellationsAreCarriedOutAndUnknownOnesIgnored) {
  Start(1, /*gated=*/true);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50), Request(11, 20, 50)}));
  ranks_[0]->gate.Give(2);
  EXPECT_EQ(Report(0).active_requests, 2);
  Plan plan = MakePlan(1, 2, {Request(12, 5, 50)});  // into the slot that the cancellation frees
  plan.cancellations = {10, 999};
  ranks_[0]->inbox().OnPlan(plan);
  const auto report = Report(0);
  EXPECT_EQ(report.active_requests, 2);
  EXPECT_EQ(report.output.load_tokens, 21 + 5);
  EXPECT_THAT(report.rejected, IsEmpty());
}

TEST_F(StepLoopTest, RefusedAssignmentsAreReportedWithTheirCode) {
  Start(1);
  OpenEpoch(1, PlanMode::kLockstep);
  ranks_[0]->inbox().OnPlan(MakePlan(
      1, 1, {Request(10, 400, 90), Request(11, 600, 9), Request(12, 400, 90), Request(13, 300, 10)}));
  const auto report = Report(0);
  ASSERT_EQ(report.rejected.size(), 2u);
  EXPECT_EQ(report.rejected[0].handle, 11u);
  EXPECT_EQ(report.rejected[0].code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(report.rejected[1].handle, 13u);
  EXPECT_EQ(report.rejected[1].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(report.active_requests, 2);
}

TEST_F(StepLoopTest, ItsOwnAdmissionRefusesWhatItCouldNotHoldToTheEnd) {
  Start(1, /*gated=*/false, /*slots=*/8, {KvAdmissionOptions::Kind::kKvFeasible});
  OpenEpoch(1, PlanMode::kLockstep);
  const auto on_demand = [](Handle handle, int64_t prompt, int64_t most) {
    SequenceRequest request = Request(handle, prompt, most);
    request.kv_on_demand = true;
    return request;
  };
  // 400 and 400 tokens fit, and 180 more once the first has ended: when it does, 10 tokens on, all would hold
  // 1,007.
  ranks_[0]->inbox().OnPlan(
      MakePlan(1, 1, {on_demand(10, 400, 10), on_demand(11, 400, 100), on_demand(12, 180, 90)}));
  auto report = Report(0);
  ASSERT_EQ(report.rejected.size(), 1u);
  EXPECT_EQ(report.rejected[0].handle, 12u);
  EXPECT_EQ(report.rejected[0].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(report.active_requests, 2);
  for (int64_t step = 2; step <= 10; ++step) {
    PlanForAll(1, step);
    report = Report(0);
    EXPECT_THAT(report.output.preempted, IsEmpty());
  }
  EXPECT_EQ(report.active_requests, 1) << "10 has ended";
  ranks_[0]->inbox().OnPlan(MakePlan(1, 11, {on_demand(12, 180, 90)}));
  report = Report(0);
  EXPECT_THAT(report.rejected, IsEmpty());
  EXPECT_EQ(report.active_requests, 2);
}

TEST_F(StepLoopTest, ANewEpochInMidStepKeepsTheStepsTokensAndTheRequests) {
  Start(2, /*gated=*/true);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50), Request(11, 60, 50)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  ranks_[0]->gate.AwaitWaiting();
  ranks_[1]->gate.AwaitWaiting();
  for (int i = 0; i < 2; ++i) {
    Epoch next = MakeEpoch(i, 2, PlanMode::kPipelined);
    next.cancellations = {11};
    ranks_[i]->inbox().OnEpoch(next);
  }
  for (auto& rank : ranks_) rank->gate.Give(1);
  const auto cut = Report(0);
  EXPECT_EQ(cut.epoch, 1u);
  EXPECT_EQ(cut.step, 1);
  EXPECT_EQ(cut.output.tokens.size(), 2u);
  EXPECT_NE(cut.barrier_error, "");
  EXPECT_NE(Report(1).barrier_error, "");
  const auto ready = ranks_[0]->link.Next<EpochReady>();
  EXPECT_EQ(ready.epoch, 2u);
  EXPECT_EQ(ready.error, "");
  ASSERT_EQ(ready.active.size(), 1u);
  EXPECT_EQ(ready.active[0].handle, 10u);
  EXPECT_EQ(ready.active[0].generated_tokens, 1);
  EXPECT_EQ(ranks_[1]->link.Next<EpochReady>().error, "");
  // Steps count from 1 again.
  PlanForAll(2, 1);
  for (auto& rank : ranks_) rank->gate.Give(1);
  const auto report = Report(0);
  EXPECT_EQ(report.epoch, 2u);
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.output.load_tokens, 101);
  EXPECT_EQ(Report(1).barrier_error, "");
}

TEST_F(StepLoopTest, ANewEpochEndsAnIdleWaitAndAForming) {
  Start(2);
  OpenEpoch(1, PlanMode::kPipelined);
  // Parked in epoch 1. Epoch 2 never forms: rank 1 does not get it.
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 2, PlanMode::kPipelined));
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 3, PlanMode::kPipelined));
  ranks_[1]->inbox().OnEpoch(MakeEpoch(1, 3, PlanMode::kPipelined));
  auto ready = ranks_[0]->link.Next<EpochReady>();
  if (ready.epoch == 2) {  // it may have skipped epoch 2 altogether
    EXPECT_THAT(ready.error, HasSubstr("CANCELLED"));
    ready = ranks_[0]->link.Next<EpochReady>();
  }
  EXPECT_EQ(ready.epoch, 3u);
  EXPECT_EQ(ready.error, "");
  EXPECT_EQ(ranks_[1]->link.Next<EpochReady>().epoch, 3u);
}

TEST_F(StepLoopTest, MessagesOfAnotherEpochAreDropped) {
  Start(1);
  OpenEpoch(5, PlanMode::kLockstep);
  auto& inbox = ranks_[0]->inbox();
  inbox.OnEpoch(MakeEpoch(0, 5, PlanMode::kLockstep));
  inbox.OnEpoch(MakeEpoch(0, 4, PlanMode::kLockstep));
  inbox.OnPlan(MakePlan(4, 1, {Request(10, 1, 1)}));
  inbox.OnPlan(MakePlan(6, 1, {Request(11, 1, 1)}));
  EXPECT_EQ(inbox.dropped(), 4);
  inbox.OnPlan(MakePlan(5, 1, {Request(12, 1, 5)}));
  EXPECT_EQ(Report(0).output.tokens[0].handle, 12u);
  inbox.OnPlan(MakePlan(5, 1, {Request(13, 1, 5)}));  // a step again that was planned
  EXPECT_EQ(inbox.dropped(), 5);
}

// The router dies, and another one comes.
class RouterLostTest : public StepLoopTest, public ::testing::WithParamInterface<PlanMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, RouterLostTest, ::testing::Values(PlanMode::kLockstep, PlanMode::kPipelined));

TEST_P(RouterLostTest, TheGroupStepsOnAndTheNextRouterGetsEveryToken) {
  Start(2, /*gated=*/true);
  for (int i = 0; i < 2; ++i) {
    Epoch epoch = MakeEpoch(i, 7, GetParam());
    epoch.router_instance = 77;
    epoch.retain = kForever;
    ranks_[i]->inbox().OnEpoch(epoch);
  }
  for (auto& rank : ranks_) rank->offer = rank->link.Next<EpochReady>().communicator_offer;
  // Request 11 may be lost: it came without a note. Request 12 ends without a router.
  Plan plan = MakePlan(7, 1, {Request(10, 100, 50), Request(11, 60, 50)});
  plan.notes = {{"note", {}}, {"", {}}};
  ranks_[0]->inbox().OnPlan(plan);
  plan.assignments = {Request(12, 30, 2)};
  plan.notes = {{"other", {}}};
  ranks_[1]->inbox().OnPlan(plan);
  const auto step = [&] {
    for (auto& rank : ranks_) rank->gate.Give(1);
  };
  std::vector<uint32_t> tokens;
  const auto expect_report = [&](int64_t number) {
    const StepReport report = Report(0);
    EXPECT_EQ(report.step, number);
    tokens.push_back(report.output.tokens[0].id);
    EXPECT_EQ(Report(1).step, number);
  };
  step();
  expect_report(1);
  for (auto& rank : ranks_) rank->inbox().OnStreamDown(1);
  step();
  expect_report(2);
  for (auto& rank : ranks_) {
    rank->gate.AwaitWaiting();
    rank->inbox().OnStreamUp(2);
  }
  step();
  expect_report(3);
  for (auto& rank : ranks_) {
    const auto hello = rank->link.Next<Hello>();
    EXPECT_EQ(rank->link.last_stream(), 2u);
    EXPECT_EQ(hello.router_instance, 77u);
    EXPECT_EQ(hello.active.size(), rank == ranks_[0] ? 2u : 0u);
    rank->gate.AwaitWaiting();  // the group is in step 4 while the router thinks
  }
  for (int i = 0; i < 2; ++i) {
    Epoch epoch = MakeEpoch(i, 1, GetParam());  // it counts from 1 again
    epoch.announce = true;
    epoch.router_instance = 78;
    epoch.retain = kForever;
    ranks_[i]->inbox().OnEpoch(epoch);
  }
  step();
  expect_report(4);
  const auto held = ranks_[0]->link.Next<Announcement>();
  EXPECT_EQ(held.epoch, 1u);
  ASSERT_EQ(held.requests.size(), 1u);
  EXPECT_EQ(held.requests[0].request.handle, 10u);
  EXPECT_EQ(held.requests[0].tokens, tokens);
  EXPECT_FALSE(held.requests[0].ended.has_value());
  const auto ready = ranks_[0]->link.Next<EpochReady>();
  EXPECT_EQ(ready.error, "");
  ASSERT_EQ(ready.active.size(), 2u);
  EXPECT_EQ(ready.active[0].generated_tokens, 4);
  const auto ended = ranks_[1]->link.Next<Announcement>();
  ASSERT_EQ(ended.requests.size(), 1u);
  EXPECT_EQ(ended.requests[0].request.handle, 12u);
  EXPECT_EQ(ended.requests[0].tokens.size(), 2u);
  EXPECT_EQ(ended.requests[0].ended, FinishCause::kLength);
  EXPECT_EQ(ranks_[1]->link.Next<EpochReady>().error, "");
}

TEST_F(StepLoopTest, AParkedGroupGreetsTheNextRouter) {
  Start(1);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 5, 1)}));
  EXPECT_TRUE(Report(0).group_idle);
  ranks_[0]->inbox().OnStreamDown(1);
  ranks_[0]->inbox().OnStreamUp(2);
  EXPECT_TRUE(ranks_[0]->link.Next<Hello>().active.empty());
  // Plans of the epoch that the new router knows nothing of are not taken from it.
  ranks_[0]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 5, 1)}));
  EXPECT_EQ(ranks_[0]->inbox().dropped(), 1);
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 1, PlanMode::kPipelined));
  EXPECT_EQ(ranks_[0]->link.Next<EpochReady>().error, "");
}

TEST_F(StepLoopTest, AnEpochThatDoesNotFormIsAnsweredWithWhyNot) {
  Start(2);
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kLockstep);
  epoch.form_timeout = absl::Milliseconds(20);
  ranks_[0]->inbox().OnEpoch(epoch);
  EXPECT_THAT(ranks_[0]->link.Next<EpochReady>().error, HasSubstr("1 of 2 ranks"));
}

TEST_F(StepLoopTest, ShutdownEndsTheLoop) {
  Start(1);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnShutdown("drained");
  // TearDown joins; a loop that did not end would hang.
}

// Many steps at full speed on several ranks, plans arriving whenever: every token exactly once.
TEST_F(StepLoopTest, EveryTokenOfEveryRequestIsReportedOnce) {
  constexpr int kRanks = 3, kRequests = 60;
  Start(kRanks, false, 100);
  OpenEpoch(1, PlanMode::kPipelined);
  std::vector<int> tokens(kRequests + 1), finished(kRequests + 1);
  int done = 0, next = 1;
  int64_t planned = 0;
  std::vector<bool> idle(kRanks, true);
  std::vector<int64_t> reported(kRanks, 0);
  const auto plan = [&](int64_t step) {
    planned = step;
    for (auto& rank : ranks_) {
      std::vector<SequenceRequest> some;
      if (next <= kRequests) some.push_back(Request(next, 1 + next % 5, 1 + next % 7)), ++next;
      rank->inbox().OnPlan(MakePlan(1, step, std::move(some)));
    }
  };
  plan(1);
  while (done < kRequests) {
    bool all_idle = true;
    for (int i = 0; i < kRanks; ++i) {
      const auto report = Report(i);
      reported[i] = report.step;
      all_idle = all_idle && report.group_idle;
      for (const auto& token : report.output.tokens) ++tokens[token.handle];
      for (const auto& finish : report.output.finished) ++finished[finish.handle], ++done;
      ASSERT_EQ(report.barrier_error, "");
    }
    EXPECT_EQ(*std::min_element(reported.begin(), reported.end()),
              *std::max_element(reported.begin(), reported.end()));
    plan(std::max(planned + 1, reported[0] + (all_idle ? 1 : 2)));
  }
  for (int i = 1; i <= kRequests; ++i) {
    EXPECT_EQ(tokens[i], 1 + i % 7) << i;
    EXPECT_EQ(finished[i], 1) << i;
  }
}

}  // namespace
}  // namespace bfio::worker
