// The engine between clients and ranks, both of which the test plays: it determines every step.
#include "worker/serve/local_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "worker/serve/serve.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<uint32_t>;

// What a client receives.
class Sink final : public router::TokenSink {
 public:
  explicit Sink(uint64_t id) : id_(id) {}

  uint64_t id() const override { return id_; }
  const std::string& traceparent() const override { return none_; }
  void SetModel(const std::string&) override {}
  void CatchUp(uint32_t, absl::Span<const uint32_t>, const router::LogprobsView&) override {}
  Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens, const router::LogprobsView&,
                   absl::Time) override {
    MutexLock lock(&mutex_);
    EXPECT_EQ(index, tokens_.size());
    if (slow) return Delivery::kTooSlow;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return Delivery::kTaken;
  }
  bool End(const absl::Status& status, std::optional<router::Finish> finish) override {
    MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return false;
    status_ = status;
    finish_ = std::move(finish);
    return false;
  }
  void Flush() override {}
  void BreakOff() override {}

  // Waits for the end.
  absl::Status Status() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::Seconds(60)));
    return status_;
  }
  Tokens tokens() {
    MutexLock lock(&mutex_);
    return tokens_;
  }
  router::FinishReason reason() {
    MutexLock lock(&mutex_);
    return finish_->reason;
  }

  bool slow = false;

 private:
  const uint64_t id_;
  const std::string none_;
  Mutex mutex_;
  Tokens tokens_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::optional<router::Finish> finish_ ABSL_GUARDED_BY(mutex_);
};

class LocalEngineTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;

  void SetUp() override {
    std::vector<Inbox*> inboxes;
    for (Inbox& inbox : inboxes_) inboxes.push_back(&inbox);
    engine_.Start(std::move(inboxes));
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(std::holds_alternative<Inbox::Greet>(inboxes_[rank].WaitForTask()));
      Hello hello;
      hello.limits = {.slots = 2, .kv_tokens = rank == 0 ? 1000 : 900, .max_sequence_tokens = 950};
      hello.communicator_offer = absl::StrCat("offer ", rank);
      engine_.link(rank).Send(1, std::move(hello));
    }
    EXPECT_EQ(Submit(1, {}).code(), absl::StatusCode::kUnavailable) << "the ranks have not met";
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto task = inboxes_[rank].WaitForTask();
      const auto& enter = std::get<Inbox::Enter>(task);
      EXPECT_EQ(enter.epoch.group.rank, rank);
      EXPECT_EQ(enter.epoch.group.world_size, kRanks);
      EXPECT_EQ(enter.epoch.group.communicator_id, "offer 0");
      EpochReady ready;
      ready.epoch = enter.epoch.group.epoch;
      engine_.link(rank).Send(1, std::move(ready));
    }
  }

  absl::Status Submit(uint64_t id, std::optional<uint32_t> rank, uint32_t prompt = 10) {
    router::ClientRequest request;
    request.request_id = absl::StrCat("r", id);
    request.prompt.assign(prompt, 7);
    request.prompt_tokens = prompt;
    request.max_new_tokens = 100;
    request.rank = rank;
    sinks_[id] = std::make_shared<Sink>(id);
    return engine_.Submit(std::move(request), {{id, sinks_[id]}});
  }

  // The requests that the rank should start with this step.
  std::vector<SequenceRequest> Begins(int rank, int64_t step) {
    due_.clear();
    inboxes_[rank].TakeDue(step, due_);
    std::vector<SequenceRequest> begins;
    for (Plan& plan : due_) {
      for (SequenceRequest& request : plan.assignments) begins.push_back(std::move(request));
    }
    return begins;
  }
  std::vector<Handle> BeginHandles(int rank, int64_t step) {
    std::vector<Handle> handles;
    for (const SequenceRequest& request : Begins(rank, step)) handles.push_back(request.handle);
    return handles;
  }

  // The rank refuses a request that should start with this step.
  void Refuse(int rank, int64_t step, std::vector<StepOutput::Token> tokens, Handle handle) {
    StepReport report = Report(step, std::move(tokens), 1);
    report.rejected = {{handle, absl::StatusCode::kResourceExhausted, "no memory"}};
    Send(rank, std::move(report));
  }

  // A report of a rank that has free slots.
  static StepReport Report(int64_t step, std::vector<StepOutput::Token> tokens, int32_t free_slots) {
    StepReport report;
    report.step = step;
    report.output.tokens = std::move(tokens);
    report.free_slots = free_slots;
    report.active_requests = 2 - free_slots;
    report.free_kv_tokens = 900;
    return report;
  }
  void Send(int rank, StepReport report) { engine_.link(rank).Send(1, std::move(report)); }

  // By rank.
  std::vector<int64_t> WaitingTokens() {
    std::vector<int64_t> tokens;
    const absl::Status asked = engine_.GetLoads(std::nullopt, [&](absl::StatusOr<router::Loads> loads) {
      for (const router::RankLoad& load : loads->loads) tokens.push_back(load.waiting_tokens);
    });
    EXPECT_TRUE(asked.ok()) << asked;
    return tokens;
  }

  Inbox inboxes_[kRanks];
  std::vector<Plan> due_;
  std::map<uint64_t, std::shared_ptr<Sink>> sinks_;
  LocalEngine engine_{{.ranks = kRanks, .max_waiting = 4}};
};

TEST_F(LocalEngineTest, ARequestWakesAllRanks) {
  ASSERT_TRUE(Submit(1, 1).ok());
  EXPECT_EQ(inboxes_[0].WaitForPlan(1, true, absl::ZeroDuration()), Inbox::PlanWait::kReady);
  EXPECT_THAT(BeginHandles(0, 1), IsEmpty());
  EXPECT_THAT(BeginHandles(1, 1), ElementsAre(1));
}

TEST_F(LocalEngineTest, ARankTakesItsRequestsInOrderAsSlotsAllow) {
  for (const uint64_t id : {1, 2, 3, 4}) ASSERT_TRUE(Submit(id, 0).ok());
  EXPECT_THAT(BeginHandles(0, 1), ElementsAre(1)) << "it was woken for the first";
  Send(0, Report(1, {{1, 50}}, 1));
  EXPECT_THAT(BeginHandles(0, 2), ElementsAre(2));
  StepReport report = Report(2, {{1, 51}, {2, 60}}, 1);
  report.output.finished = {{1, FinishCause::kLength}};
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, 3), ElementsAre(3));
  EXPECT_TRUE(sinks_[1]->Status().ok());
  EXPECT_THAT(sinks_[1]->tokens(), ElementsAre(50, 51));
  EXPECT_EQ(sinks_[1]->reason(), router::FinishReason::kLength);
}

TEST_F(LocalEngineTest, WaitingRequestsAreBounded) {
  for (const uint64_t id : {1, 2, 3, 4, 5}) ASSERT_TRUE(Submit(id, 0).ok()) << "the first is placed";
  EXPECT_EQ(Submit(6, 0).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LocalEngineTest, WhatSomeRankCannotHoldIsRefusedAtOnce) {
  EXPECT_EQ(engine_.GetServing().max_sequence_tokens, 900) << "of the smaller rank";
  EXPECT_TRUE(Submit(1, std::nullopt, 800).ok());
  const absl::Status refused = Submit(2, std::nullopt, 801);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "prompt + max_new_tokens is 901 tokens; the engine holds at most 900 per request");
}

TEST_F(LocalEngineTest, ThePromptsThatWaitAreCountedByRank) {
  ASSERT_TRUE(Submit(1, 0, 30).ok());
  EXPECT_THAT(WaitingTokens(), ElementsAre(0, 0)) << "it is placed at once";
  ASSERT_TRUE(Submit(2, 0, 100).ok());
  ASSERT_TRUE(Submit(3, 0, 40).ok());
  ASSERT_TRUE(Submit(4, 1, 7).ok());
  EXPECT_THAT(WaitingTokens(), ElementsAre(140, 7));
  engine_.Cancel(3, /*timed_out=*/false);
  EXPECT_THAT(WaitingTokens(), ElementsAre(100, 7));
  Begins(0, 1);
  Send(0, Report(1, {{1, 50}}, 1));
  EXPECT_THAT(BeginHandles(0, 2), ElementsAre(2));
  EXPECT_THAT(WaitingTokens(), ElementsAre(0, 7));
  StepReport report = Report(2, {{1, 51}}, 0);
  report.output.preempted = {2};
  Send(0, std::move(report));
  EXPECT_THAT(WaitingTokens(), ElementsAre(100, 7)) << "it is computed again";
}

TEST_F(LocalEngineTest, APreemptedRequestGoesOnBeforeOthers) {
  ASSERT_TRUE(Submit(1, 0).ok());
  ASSERT_TRUE(Submit(2, 0).ok());
  ASSERT_TRUE(Submit(3, 0).ok());
  Begins(0, 1);
  Send(0, Report(1, {{1, 50}}, 1));
  EXPECT_THAT(BeginHandles(0, 2), ElementsAre(2));
  Send(0, Report(2, {{1, 51}, {2, 60}}, 0));
  StepReport report = Report(3, {{1, 52}}, 1);
  report.output.preempted = {2};
  Send(0, std::move(report));
  const std::vector<SequenceRequest> again = Begins(0, 4);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].handle, 2u);
  EXPECT_EQ(again[0].prompt.size(), 11u);
  EXPECT_EQ(again[0].prompt.back(), 60u) << "its token is part of the prompt now";
  EXPECT_EQ(again[0].first_index, 1);
  EXPECT_EQ(again[0].max_new_tokens, 99);
}

TEST_F(LocalEngineTest, ARefusedRequestIsTriedAgainUnlessItWasAlone) {
  ASSERT_TRUE(Submit(1, 0).ok());
  ASSERT_TRUE(Submit(2, 0).ok());
  Begins(0, 1);
  Send(0, Report(1, {{1, 50}}, 1));
  Begins(0, 2);
  StepReport report = Report(2, {{1, 51}}, 1);
  report.rejected = {{2, absl::StatusCode::kResourceExhausted, "no memory"}};
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, 3), ElementsAre(2));
  // Rank 1 has no requests.
  ASSERT_TRUE(Submit(3, 1).ok());
  Send(1, Report(3, {}, 2));
  EXPECT_THAT(BeginHandles(1, 4), ElementsAre(3));
  report = Report(4, {}, 2);
  report.rejected = {{3, absl::StatusCode::kResourceExhausted, "no memory"}};
  Send(1, std::move(report));
  EXPECT_EQ(sinks_[3]->Status(), absl::ResourceExhaustedError("no memory"));
}

// The rank starts the requests of a plan in its own order (--admission=mc_sf).
TEST_F(LocalEngineTest, ARequestRefusedBesideOthersIsOfferedAgain) {
  for (const uint64_t id : {1, 2, 3}) ASSERT_TRUE(Submit(id, 0).ok());
  Begins(0, 1);
  StepReport report = Report(1, {{1, 50}}, 2);
  report.output.finished = {{1, FinishCause::kLength}};
  Send(0, std::move(report));
  ASSERT_THAT(BeginHandles(0, 2), ElementsAre(2, 3));
  report = Report(2, {{3, 60}}, 1);
  report.rejected = {{2, absl::StatusCode::kResourceExhausted, "no memory"}};
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, 3), ElementsAre(2));
}

TEST_F(LocalEngineTest, AHeadThatDoesNotFitHoldsTheOthersBack) {
  ASSERT_TRUE(Submit(1, 0).ok());
  ASSERT_TRUE(Submit(2, 0, /*prompt=*/800).ok());
  ASSERT_TRUE(Submit(3, 0).ok());
  Begins(0, 1);
  StepReport report = Report(1, {{1, 50}}, 1);
  report.free_kv_tokens = 500;
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, 2), IsEmpty());
  Send(0, Report(2, {{1, 51}}, 1));
  EXPECT_THAT(BeginHandles(0, 3), ElementsAre(2));
}

TEST_F(LocalEngineTest, ARequestThatIsRefusedTooOftenReservesItsLargestSize) {
  ASSERT_TRUE(Submit(1, 0).ok());
  Begins(0, 1);
  ASSERT_TRUE(Submit(2, 0).ok());
  ASSERT_TRUE(Submit(3, 0).ok());
  Send(0, Report(1, {{1, 50}}, 1));
  int64_t step = 2;
  for (int refusals = 0; refusals < 8; ++refusals, ++step) {
    const std::vector<SequenceRequest> begins = Begins(0, step);
    ASSERT_EQ(begins.size(), 1u) << step;
    EXPECT_EQ(begins[0].handle, 2u);
    EXPECT_TRUE(begins[0].kv_on_demand) << step;
    EXPECT_EQ(begins[0].waited_steps, step - 1) << "all steps since it came";
    if (refusals < 7) Refuse(0, step, {{1, 51}}, 2);
  }
  // The prompt of 10 tokens fits, but 100 additional tokens do not.
  StepReport report = Report(9, {{1, 58}}, 1);
  report.rejected = {{2, absl::StatusCode::kResourceExhausted, "no memory"}};
  report.free_kv_tokens = 150;
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, 10), IsEmpty()) << "it is not passed either";
  Send(0, Report(10, {{1, 59}}, 1));
  const std::vector<SequenceRequest> begins = Begins(0, 11);
  ASSERT_EQ(begins.size(), 1u);
  EXPECT_EQ(begins[0].handle, 2u);
  EXPECT_FALSE(begins[0].kv_on_demand);
  EXPECT_EQ(begins[0].waited_steps, 10);
}

TEST_F(LocalEngineTest, ARequestThatRanCountsItsRefusalsAgainAndKeepsItsAge) {
  ASSERT_TRUE(Submit(1, 0).ok());
  ASSERT_TRUE(Submit(2, 0).ok());
  Begins(0, 1);
  Send(0, Report(1, {{1, 50}}, 1));
  for (int64_t step = 2; step < 9; ++step) Refuse(0, step, {{1, 51}}, 2);
  Begins(0, 9);
  Send(0, Report(9, {{1, 58}, {2, 60}}, 0));
  StepReport report = Report(10, {{1, 59}}, 1);
  report.output.preempted = {2};
  Send(0, std::move(report));
  Refuse(0, 11, {{1, 60}}, 2);
  const std::vector<SequenceRequest> begins = Begins(0, 12);
  ASSERT_EQ(begins.size(), 2u) << "it was placed with step 11 too";
  EXPECT_TRUE(begins[1].kv_on_demand);
  EXPECT_EQ(begins[0].waited_steps, 8) << "the steps before it began";
  EXPECT_EQ(begins[1].waited_steps, 9);
}

TEST_F(LocalEngineTest, SeveralRefusedOrPreemptedRequestsKeepTheirOrder) {
  for (const uint64_t id : {1, 2, 3, 4}) ASSERT_TRUE(Submit(id, 0).ok());
  Begins(0, 1);
  StepReport report = Report(1, {{1, 50}}, 2);
  report.output.finished = {{1, FinishCause::kLength}};
  Send(0, std::move(report));
  int64_t step = 2;
  // A rank checks the requests of a plan in its own order.
  for (const std::vector<Handle>& order : std::vector<std::vector<Handle>>{{2, 3}, {3, 2}}) {
    ASSERT_THAT(BeginHandles(0, step), ElementsAre(2, 3));
    report = Report(step++, {}, 2);
    for (const Handle handle : order)
      report.rejected.push_back({handle, absl::StatusCode::kResourceExhausted, "no memory"});
    Send(0, std::move(report));
  }
  ASSERT_THAT(BeginHandles(0, step), ElementsAre(2, 3));
  Send(0, Report(step++, {{2, 60}, {3, 70}}, 0));
  report = Report(step++, {}, 2);
  report.output.preempted = {3, 2};
  Send(0, std::move(report));
  ASSERT_THAT(BeginHandles(0, step), ElementsAre(2, 3));
  // The older request is refused; the younger one ran and is preempted.
  Refuse(0, step++, {{3, 71}}, 2);
  report = Report(step, {}, 2);
  report.rejected = {{2, absl::StatusCode::kResourceExhausted, "no memory"}};
  report.output.preempted = {3};
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, step + 1), ElementsAre(2, 2, 3)) << "request 2 was placed with both steps";
}

// The report's free slots already include the slot of this request.
TEST_F(LocalEngineTest, ACancelledRequestThatEndedMeanwhileFreesOneSlot) {
  for (const uint64_t id : {1, 2, 3, 4}) ASSERT_TRUE(Submit(id, 0).ok());
  Begins(0, 1);
  Send(0, Report(1, {{1, 50}}, 1));
  ASSERT_THAT(BeginHandles(0, 2), ElementsAre(2));
  engine_.Cancel(1, /*timed_out=*/false);
  StepReport report = Report(2, {{1, 51}, {2, 60}}, 1);
  report.output.finished = {{1, FinishCause::kLength}};
  Send(0, std::move(report));
  EXPECT_THAT(BeginHandles(0, 3), ElementsAre(3));
  ASSERT_EQ(due_.size(), 1u);
  EXPECT_THAT(due_[0].cancellations, IsEmpty());
  // First a preempted request, then a refused one.
  engine_.Cancel(2, /*timed_out=*/false);
  report = Report(3, {{3, 70}}, 1);
  report.output.preempted = {2};
  Send(0, std::move(report));
  ASSERT_TRUE(Submit(5, 0).ok());
  EXPECT_THAT(BeginHandles(0, 4), ElementsAre(4));
  engine_.Cancel(4, /*timed_out=*/false);
  ASSERT_TRUE(Submit(6, 0).ok());
  Refuse(0, 4, {{3, 71}}, 4);
  EXPECT_THAT(BeginHandles(0, 5), ElementsAre(5));
}

TEST_F(LocalEngineTest, ACancelledRequestLeavesItsRankWithTheNextStep) {
  ASSERT_TRUE(Submit(1, 0).ok());
  ASSERT_TRUE(Submit(2, 0).ok());
  Begins(0, 1);
  engine_.Cancel(1, /*timed_out=*/false);
  engine_.Cancel(2, /*timed_out=*/true);
  EXPECT_TRUE(absl::IsCancelled(sinks_[1]->Status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(sinks_[2]->Status()));
  Send(0, Report(1, {{1, 50}}, 1));
  EXPECT_THAT(BeginHandles(0, 2), IsEmpty()) << "the second was never placed";
  ASSERT_EQ(due_.size(), 1u);
  EXPECT_THAT(due_[0].cancellations, ElementsAre(1));
  EXPECT_THAT(sinks_[1]->tokens(), IsEmpty());
}

TEST_F(LocalEngineTest, AClientThatDoesNotReadLosesItsRequestAlone) {
  ASSERT_TRUE(Submit(1, 0).ok());
  sinks_[1]->slow = true;
  ASSERT_TRUE(Submit(2, 1).ok());
  Begins(0, 1);
  Send(0, Report(1, {{1, 50}}, 1));
  EXPECT_EQ(sinks_[1]->Status().code(), absl::StatusCode::kResourceExhausted);
  Send(1, Report(1, {}, 2));
  EXPECT_THAT(BeginHandles(1, 2), ElementsAre(2));
}

TEST_F(LocalEngineTest, ABrokenGroupEndsAllRequests) {
  ASSERT_TRUE(Submit(1, 0).ok());
  Begins(0, 1);
  StepReport report = Report(1, {{1, 50}}, 1);
  report.barrier_error = "rank 1 is gone";
  Send(0, std::move(report));
  EXPECT_EQ(sinks_[1]->Status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(sinks_[1]->tokens(), ElementsAre(50)) << "what was made is good";
  EXPECT_FALSE(engine_.failure().ok());
  EXPECT_FALSE(engine_.GetServing().ready);
  EXPECT_EQ(Submit(2, 0).code(), absl::StatusCode::kUnavailable);
}

// --- draining ---

// The requests of a failed rank do not end by themselves.
TEST_F(LocalEngineTest, ARankThatFailsEndsTheDrain) {
  ASSERT_TRUE(Submit(1, 0).ok());
  const absl::Status broken = absl::InternalError("the device is gone");
  int asked = 0;
  const auto ranks = [&] { return ++asked < 3 ? absl::OkStatus() : broken; };
  EXPECT_EQ(AwaitDrained(engine_, ranks, absl::Minutes(1)), broken);
}

TEST_F(LocalEngineTest, AnEngineThatFailsWhileItDrainsIsAnError) {
  ASSERT_TRUE(Submit(1, 0).ok());
  Begins(0, 1);
  const auto ranks = [&] {
    StepReport report = Report(1, {{1, 50}}, 1);
    report.barrier_error = "rank 1 is gone";
    Send(0, std::move(report));
    return absl::OkStatus();
  };
  EXPECT_EQ(AwaitDrained(engine_, ranks, absl::Minutes(1)), absl::UnavailableError("rank 1 is gone"));
}

TEST_F(LocalEngineTest, ADrainEndsWithTheLastRequestOrItsTime) {
  ASSERT_TRUE(Submit(1, 0).ok());
  const auto fine = [] { return absl::OkStatus(); };
  EXPECT_TRUE(AwaitDrained(engine_, fine, absl::ZeroDuration()).ok());
  EXPECT_FALSE(engine_.EmptyWithin(absl::ZeroDuration()));
  Begins(0, 1);
  const auto ends = [&] {
    StepReport report = Report(1, {{1, 50}}, 2);
    report.output.finished = {{1, FinishCause::kLength}};
    Send(0, std::move(report));
    return absl::OkStatus();
  };
  EXPECT_TRUE(AwaitDrained(engine_, ends, absl::Minutes(1)).ok());
  EXPECT_TRUE(engine_.EmptyWithin(absl::ZeroDuration()));
}

TEST_F(LocalEngineTest, NamesAreUniqueAmongLiveRequests) {
  ASSERT_TRUE(Submit(1, 0).ok());
  const auto first = sinks_[1];
  EXPECT_EQ(Submit(1, 0).code(), absl::StatusCode::kAlreadyExists);
  bool found = false;
  const auto abort = [&] {
    EXPECT_TRUE(engine_.Abort({"", "r1", ""}, [&](absl::StatusOr<bool> answer) { found = *answer; }).ok());
    return found;
  };
  EXPECT_TRUE(abort());
  EXPECT_TRUE(first->Status().ok());
  EXPECT_EQ(first->reason(), router::FinishReason::kAbort);
  EXPECT_FALSE(abort());
  EXPECT_TRUE(Submit(1, 0).ok());
}

TEST_F(LocalEngineTest, OutputsOfACallAreTakenNamedAndAbortedTogether) {
  const auto submit = [&](uint64_t first, uint32_t outputs) {
    router::ClientRequest request;
    request.request_id = "call";
    request.prompt = {7};
    request.prompt_tokens = 1;
    request.max_new_tokens = 100;
    std::vector<router::RequestHandler::Output> to;
    for (uint32_t i = 0; i < outputs; ++i) {
      sinks_[first + i] = std::make_shared<Sink>(first + i);
      to.push_back({first + i, sinks_[first + i]});
    }
    return engine_.Submit(std::move(request), std::move(to));
  };
  EXPECT_EQ(submit(10, 5), absl::InvalidArgumentError("n is 5; must be at most 4"));
  ASSERT_TRUE(submit(20, 3).ok());
  EXPECT_EQ(submit(30, 3).code(), absl::StatusCode::kAlreadyExists);
  engine_.Cancel(20, /*timed_out=*/false);
  EXPECT_TRUE(absl::IsCancelled(sinks_[20]->Status()));
  EXPECT_EQ(submit(30, 1).code(), absl::StatusCode::kAlreadyExists) << "two are live";
  EXPECT_TRUE(engine_.Abort({"", "call", ""}, [](absl::StatusOr<bool> found) { EXPECT_TRUE(*found); }).ok());
  for (const uint64_t id : {21, 22}) {
    EXPECT_TRUE(sinks_[id]->Status().ok());
    EXPECT_EQ(sinks_[id]->reason(), router::FinishReason::kAbort);
  }
  EXPECT_TRUE(submit(40, 2).ok());
}

}  // namespace
}  // namespace bfio::worker
