// The step loop with the star barrier, the sim engine without real time, and a router made of test code.
//
// Purpose: shared by all tests of the step loop. Threads: the test's own, and one for each rank's loop.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "worker/barrier/star/star_endpoint.h"
#include "worker/engine/sim/sim_engine.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/step_loop.h"

namespace bfio::worker {

// Timeout against hangs, not a performance bound.
inline constexpr absl::Duration kForever = absl::Seconds(60);

// Stores the messages that the loop sends.
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

// Lets a test pause local compute: each step takes a ticket, and the test provides the tickets.
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
  RankRecorder recorder{"w", {}};
  std::unique_ptr<StepLoop> loop;
  std::thread thread;
  absl::Status ended;
  std::string offer;

  Inbox& inbox() { return loop->inbox(); }
};

class StepLoopTest : public ::testing::Test {
 protected:
  // Starts `count` ranks and reads their Hello; their gates are open unless `gated`.
  void Start(int count, bool gated = false, int32_t slots = 2, double kv_watermark = 0) {
    for (int i = 0; i < count; ++i) {
      auto rank = std::make_unique<TestRank>();
      if (!gated) rank->gate.Open();
      SimOptions options;
      options.limits = {slots, 1000, 500};
      options.token_budget = token_budget_;
      options.cost = cost_;
      std::unique_ptr<StepTimer> timer;
      if (!real_time_) timer = std::make_unique<GatedTimer>(&rank->gate);
      auto engine = MakeSimEngine(options, std::move(timer));
      ASSERT_TRUE(engine.ok());
      rank->loop = std::make_unique<StepLoop>(StepLoopOptions{absl::StrCat("w", i), "1.2.3", nullptr, nullptr,
                                                              1 << 20, kv_watermark, &rank->recorder},
                                              *std::move(engine), *StarEndpoint::Create({}), rank->link);
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
    return {.handle = handle, .prompt_length = prompt, .max_new_tokens = output};
  }
  // Sends the same empty plan to all ranks.
  void PlanForAll(uint64_t epoch, int64_t step) {
    for (auto& rank : ranks_) rank->inbox().OnPlan(MakePlan(epoch, step));
  }
  StepReport Report(int rank) { return ranks_[rank]->link.Next<StepReport>(); }
  int size() const { return static_cast<int>(ranks_.size()); }

  // Token budget of the engines' steps; 0: prompts are computed in one step.
  int64_t token_budget_ = 0;
  StepCost cost_;
  // Whether steps take the time that their cost predicts, with no gate to pause them.
  bool real_time_ = false;
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

}  // namespace bfio::worker
