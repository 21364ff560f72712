// A server's ranks and their loads: when the ranks of a list that changes attach and leave, what they are
// told of the engine's loads, and how; and when a server is taken for another one.
#include "router/engine_link/engine_server.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Described = absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&>;
using Loads = std::vector<EngineRankLoad>;
using GotLoads = absl::AnyInvocable<void(absl::StatusOr<Loads>) &&>;

struct TestRecords final : EngineRecords {
  explicit TestRecords(EngineClient::RecordCallbacks to) : callbacks(std::move(to)) {}
  void Cancel() override { cancelled = true; }
  Loads Take() override { return std::exchange(loads, {}); }

  EngineClient::RecordCallbacks callbacks;
  Loads loads;
  bool cancelled = false;
};

struct TestStream final : public EngineStream {
  explicit TestStream(EngineClient::StreamCallbacks to) : callbacks(std::move(to)) {}
  void Cancel() override {}

  EngineClient::StreamCallbacks callbacks;
};

// What the client was asked, and not answered yet; health checks are answered at once, unless they are held.
struct Asked {
  bool hold_health = false;
  std::vector<absl::AnyInvocable<void(absl::Status) &&>> held;
  std::vector<Described> describe;
  std::vector<GotLoads> loads;
  std::vector<std::shared_ptr<TestRecords>> records;
  absl::Status health;
  // Of the requests, in order.
  std::vector<std::optional<int32_t>> ranks;
  std::vector<std::shared_ptr<TestStream>> streams;
};

class TestClient final : public EngineClient {
 public:
  explicit TestClient(Asked* asked) : asked_(asked) {}
  void Describe(absl::Duration, Described done) override { asked_->describe.push_back(std::move(done)); }
  void CheckHealth(absl::Duration, absl::AnyInvocable<void(absl::Status) &&> done) override {
    if (asked_->hold_health) {
      asked_->held.push_back(std::move(done));
    } else {
      std::move(done)(asked_->health);
    }
  }
  void GetLoads(absl::Duration, GotLoads done) override { asked_->loads.push_back(std::move(done)); }
  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) override {
    asked_->records.push_back(std::make_shared<TestRecords>(std::move(callbacks)));
    return asked_->records.back();
  }
  std::shared_ptr<EngineStream> Generate(const EngineCall&, std::optional<int32_t> rank, const std::string&,
                                         StreamCallbacks callbacks) override {
    asked_->ranks.push_back(rank);
    asked_->streams.push_back(std::make_shared<TestStream>(std::move(callbacks)));
    return asked_->streams.back();
  }

 private:
  Asked* const asked_;
};

class EngineServerTest : public ::testing::Test, public WorkerHandler {
 protected:
  EngineServerTest() {
    options_.make_client = [this](const EngineAddress&) {
      ++clients_;
      return std::make_unique<TestClient>(&asked_);
    };
    server_ = std::make_shared<EngineServer>(EngineAddress{.protocol = "vllm", .server = {"a", 1}}, &options_,
                                             this, events_, &next_member_, nullptr);
  }
  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override {
    if (const auto* const hello = std::get_if<WorkerHello>(&event)) {
      prefix_cache_ = hello->prefix_cache;
      seen_.emplace_back("joins");
      channel_ = std::move(channel);
      channels_.push_back(channel_);
    } else if (std::holds_alternative<Leave>(event)) {
      seen_.emplace_back("leaves");
    } else if (const auto* const report = std::get_if<StepReport>(&event)) {
      reported_[channel.get()] = report->engine_load;
      rejected_ += report->rejected.size();
      for (const core::CachedPrompt& cached : report->cached) cached_.push_back(cached.tokens);
    } else if (std::holds_alternative<Gone>(event)) {
      gone_.push_back(channel->id());
    }
  }
  // The engine tells what it is.
  void Describe(EngineDescription description = {.slots = 4, .max_sequence_tokens = 64}) {
    described_ = description;
    AnswerDescribe(std::move(description));
  }
  void AnswerDescribe(absl::StatusOr<EngineDescription> description) {
    ASSERT_EQ(asked_.describe.size(), 1u);
    Described done = std::move(asked_.describe.back());
    asked_.describe.clear();
    std::move(done)(std::move(description));
    RunEvents();
  }
  // Two ranks, numbered from 4 in reports, that have had their first plan.
  void ServeTwoRanks() {
    Later();
    Describe({.ranks = 2, .first_rank = 4, .all_ranks = 8, .slots = 4, .max_sequence_tokens = 64});
    ASSERT_EQ(channels_.size(), 2u);
    for (const auto& channel : channels_) channel->SendEpoch({.epoch = 1});
    RunEvents();
  }
  // The requests that a rank has by its report to the router; -1: it does not say.
  int64_t Told(size_t rank) {
    channels_[rank]->SendPlan({.epoch = 1}, {});
    RunEvents();
    const std::optional<EngineLoad> load = reported_[channels_[rank].get()];
    return load ? load->requests : -1;
  }
  void Record(Loads loads) {
    TestRecords& records = *asked_.records.back();
    records.loads = std::move(loads);
    records.callbacks.on_records();
    RunEvents();
  }
  void Answer(absl::StatusOr<Loads> loads) {
    ASSERT_EQ(asked_.loads.size(), 1u);
    std::move(asked_.loads.back())(std::move(loads));
    asked_.loads.clear();
    RunEvents();
  }
  // The rank that attached last gets its first plan, with a request.
  void Place() {
    channel_->SendEpoch({.epoch = 1});
    ClientRequest request;
    request.prompt_tokens = 3;
    request.max_new_tokens = 2;
    const std::vector<Assignment> assignments = {{.id = 7, .request = &request}};
    channel_->SendPlan({.epoch = 1}, assignments);
    RunEvents();
  }
  // The router cuts off the rank that attached last.
  void CutOff() {
    channel_->Close(absl::DeadlineExceededError("no step report in time"));
    RunEvents();
  }
  // A call of the rank that attached last fails.
  void Fail(size_t stream, const absl::Status& why = absl::InternalError("broken")) {
    std::move(asked_.streams.at(stream)->callbacks.on_end)(why);
    RunEvents();
  }
  // Until the next health check has been answered; the server is still what it was.
  void Check() {
    Later();
    RunEvents();
    if (!asked_.describe.empty()) AnswerDescribe(described_);
  }
  // Until there are none left.
  void RunEvents() {
    std::vector<EventQueue::Event> events;
    do {
      events_->WaitAndTake(absl::ZeroDuration(), events);
      for (EventQueue::Event& event : events) std::move(event)();
    } while (!events.empty());
  }
  // As if the longest wait before it attaches or asks again had passed.
  void Later() { server_->OnTimer(MonotonicNow() + EngineLink::kLongestRetry); }

  EngineLink::Options options_;
  Asked asked_;
  const std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  MemberId next_member_ = 1;
  std::shared_ptr<EngineServer> server_;
  std::vector<std::string> seen_;
  std::shared_ptr<WorkerChannel> channel_;
  std::vector<std::shared_ptr<WorkerChannel>> channels_;
  std::map<WorkerChannel*, std::optional<EngineLoad>> reported_;
  // Requests that ranks have rejected; connections that are gone.
  size_t rejected_ = 0;
  std::vector<MemberId> gone_;
  // The rank that attached last has a prefix cache; what ranks have found in theirs.
  bool prefix_cache_ = false;
  std::vector<int64_t> cached_;
  // As the engine described itself last; clients so far.
  EngineDescription described_;
  int clients_ = 0;
};

// Its ranks would be the emptiest, and be gone with what is placed there a second later.
TEST_F(EngineServerTest, WhatIsDescribedButNotHealthyDoesNotAttachAndIsAskedLessAndLess) {
  asked_.health = absl::UnavailableError("the engine has died");
  absl::Duration before = absl::ZeroDuration();
  for (int i = 0; i < 3; ++i) {
    Later();
    Describe();
    EXPECT_THAT(seen_, IsEmpty());
    const absl::Duration pause = server_->next_deadline() - MonotonicNow();
    EXPECT_GT(pause, before);
    before = pause;
  }
  asked_.health = absl::OkStatus();
  Later();
  Describe();
  EXPECT_THAT(seen_, ElementsAre("joins"));
}

TEST_F(EngineServerTest, WhatIsListedNoMoreAsItAnswersNeverAttaches) {
  Later();
  server_->Retire();
  Describe();
  EXPECT_THAT(seen_, IsEmpty());
  EXPECT_TRUE(server_->gone());
  server_->Keep();
  Later();
  Describe();
  EXPECT_THAT(seen_, ElementsAre("joins")) << "it was listed again before the link had forgotten it";
}

TEST_F(EngineServerTest, WhatIsListedAgainAsItLeavesComesBack) {
  Later();
  Describe();
  server_->Retire();
  channel_->SendShutdown("drained");
  RunEvents();
  server_->Keep();
  channel_->Close(absl::OkStatus());
  RunEvents();
  EXPECT_FALSE(server_->gone());
  Later();
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves", "joins"));
}

TEST_F(EngineServerTest, WhatHasLeftIsGoneUntilItIsListedAgain) {
  Later();
  Describe();
  server_->Retire();
  EXPECT_FALSE(server_->gone());
  channel_->SendShutdown("drained");
  channel_->Close(absl::OkStatus());
  RunEvents();
  EXPECT_TRUE(server_->gone());
  Later();
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves"));
  server_->Keep();
  Later();
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves", "joins"));
}

// As its contract says; the router has an entry of each until then.
TEST_F(EngineServerTest, AConnectionThatTheRouterClosesIsGone) {
  Later();
  Describe();
  const MemberId first = channel_->id();
  CutOff();
  EXPECT_THAT(gone_, ElementsAre(first));
  Later();
  const MemberId second = channel_->id();
  channel_->SendShutdown("drained");
  CutOff();
  asked_.health = absl::UnavailableError("gone");
  Check();
  EXPECT_THAT(gone_, ElementsAre(first, second)) << "once each";
}

TEST_F(EngineServerTest, AHealthCheckThatBeganBeforeACallFailedDoesNotCount) {
  Later();
  Describe();
  Place();
  Place();
  ASSERT_EQ(asked_.streams.size(), 2u);
  asked_.hold_health = true;
  const auto answer = [&](size_t check, const absl::Status& health) {
    std::move(asked_.held.at(check))(health);
    RunEvents();
  };
  Fail(0);
  Check();
  ASSERT_EQ(asked_.held.size(), 1u);
  Fail(1);
  EXPECT_EQ(asked_.held.size(), 1u) << "one at a time";
  answer(0, absl::OkStatus());
  EXPECT_EQ(rejected_, 1u) << "the check began after the first failure, and before the second one";
  Check();
  ASSERT_EQ(asked_.held.size(), 2u);
  answer(1, absl::UnavailableError("gone"));
  EXPECT_EQ(rejected_, 1u) << "the request is lost with the server";
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(EngineServerTest, ARankThatBringsNoTokenAttachesAfterLongerAndLongerPauses) {
  Later();
  Describe();
  // So that the server has no other deadline.
  asked_.hold_health = true;
  Later();
  for (const int pauses : {1, 2, 4}) {
    Place();
    const absl::Time before = MonotonicNow();
    CutOff();
    EXPECT_GE(server_->next_deadline() - before, pauses * EngineLink::kShortestRetry);
    Later();
  }
  Place();
  EngineTokens tokens;
  tokens.ids = {100};
  asked_.streams.back()->callbacks.on_tokens(std::move(tokens));
  RunEvents();
  CutOff();
  EXPECT_LE(server_->next_deadline() - MonotonicNow(), EngineLink::kShortestRetry);
}

// The first message may come before the engine has looked its prompt up.
TEST_F(EngineServerTest, WhatAPrefixCacheHadIsThatOfTheFirstMessageWithTokens) {
  Later();
  Describe();
  EXPECT_TRUE(prefix_cache_);
  Place();
  const auto bring = [&](std::vector<uint32_t> ids, int64_t cached) {
    EngineTokens tokens;
    tokens.ids = std::move(ids);
    tokens.message = std::make_shared<AMessage>();
    tokens.cached_prompt_tokens = cached;
    asked_.streams.back()->callbacks.on_tokens(std::move(tokens));
    RunEvents();
    server_->OnTimer(MonotonicNow() + absl::Seconds(1));
    RunEvents();
  };
  bring({}, 0);
  EXPECT_THAT(cached_, IsEmpty());
  bring({100}, 2);
  EXPECT_THAT(cached_, ElementsAre(2));
  bring({101}, 2);
  EXPECT_THAT(cached_, ElementsAre(2));
}

// --- servers that are replaced ---

// A health check says nothing of that: the server that has taken over the address is healthy.
TEST_F(EngineServerTest, AServerWithAnotherDescriptionLeavesAndAttachesWithIt) {
  for (const EngineDescription& other :
       std::vector<EngineDescription>{{.slots = 4, .max_sequence_tokens = 64, .model = "other"},
                                      {.slots = 4, .kv_tokens = 100, .max_sequence_tokens = 64},
                                      {.slots = 4, .max_sequence_tokens = 65},
                                      {.slots = 5, .max_sequence_tokens = 64},
                                      {.ranks = 2, .all_ranks = 2, .slots = 4, .max_sequence_tokens = 64}}) {
    SCOPED_TRACE(gone_.size());
    Later();
    Describe();
    channels_.clear();
    Place();
    const MemberId before = channel_->id();
    gone_.clear();
    rejected_ = 0;
    Fail(asked_.streams.size() - 1);
    Later();
    RunEvents();
    EXPECT_EQ(rejected_, 0u) << "not before the engine has described itself";
    AnswerDescribe(other);
    EXPECT_EQ(rejected_, 0u) << "the request is lost with the server";
    EXPECT_THAT(gone_, ElementsAre(before));
    Later();
    Describe(other);
    EXPECT_EQ(channels_.size(), static_cast<size_t>(other.ranks));
    asked_.health = absl::UnavailableError("gone");
    Check();
    asked_.health = absl::OkStatus();
  }
}

TEST_F(EngineServerTest, AServerWithTheSameDescriptionGoesOn) {
  Later();
  Describe();
  Place();
  Place();
  Fail(0);
  Later();
  RunEvents();
  EXPECT_EQ(rejected_, 0u);
  AnswerDescribe(described_);
  EXPECT_EQ(rejected_, 1u);
  Fail(1);
  Later();
  RunEvents();
  AnswerDescribe(absl::DeadlineExceededError("no loads in time"));
  EXPECT_EQ(rejected_, 2u) << "the failures belong to the requests";
  EXPECT_THAT(gone_, IsEmpty());
  EXPECT_EQ(clients_, 1);
}

TEST_F(EngineServerTest, AServerThatIsGoneAsItDescribesItselfIsLost) {
  Later();
  Describe();
  Place();
  Fail(0);
  Later();
  RunEvents();
  AnswerDescribe(absl::UnavailableError("gone"));
  EXPECT_EQ(rejected_, 0u);
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(EngineServerTest, AServerWhoseRecordsEndDescribesItselfAgain) {
  ServeTwoRanks();
  Check();
  std::move(asked_.records.back()->callbacks.on_end)(absl::UnavailableError("connection reset"));
  RunEvents();
  Later();
  RunEvents();
  AnswerDescribe(described_);
  EXPECT_THAT(gone_, IsEmpty());
  Later();
  RunEvents();
  EXPECT_THAT(asked_.describe, IsEmpty()) << "they have ended once";
}

// An idle server without records may be replaced without a failure.
TEST_F(EngineServerTest, AServerDescribesItselfAgainFromTimeToTime) {
  Later();
  Describe();
  server_->OnTimer(MonotonicNow() + EngineLink::kHealthCheck);
  RunEvents();
  EXPECT_THAT(asked_.describe, IsEmpty());
  server_->OnTimer(MonotonicNow() + EngineLink::kHealthCheck + EngineLink::kDescribeAgain);
  RunEvents();
  AnswerDescribe(EngineDescription{.slots = 9, .max_sequence_tokens = 64});
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(EngineServerTest, HoweverManyCallsFailTheServerDescribesItselfOnceASecond) {
  Later();
  Describe();
  constexpr size_t kCalls = 20;
  for (size_t i = 0; i < kCalls; ++i) Place();
  const absl::Time start = MonotonicNow();
  int64_t descriptions = 0;
  for (size_t i = 0; i < kCalls; ++i) {
    Fail(i, i % 2 == 0 ? absl::UnknownError("broken") : absl::InternalError("broken"));
    server_->OnTimer(MonotonicNow());
    RunEvents();
    if (asked_.describe.empty()) continue;
    ++descriptions;
    AnswerDescribe(described_);
  }
  EXPECT_LE(descriptions, 1 + (MonotonicNow() - start) / EngineLink::kHealthCheck);
  Check();
  EXPECT_EQ(rejected_, kCalls) << "none waits for a description of its own";
}

// The kernel would repeat for many minutes what a dead connection does not carry.
TEST_F(EngineServerTest, AServerThatDoesNotAnswerIsContactedOverANewConnection) {
  Later();
  Describe();
  EXPECT_EQ(clients_, 1);
  asked_.health = absl::UnavailableError("gone");
  Check();
  Later();
  EXPECT_EQ(clients_, 1) << "its connection is well";
  asked_.health = absl::OkStatus();
  Describe();
  asked_.health = absl::DeadlineExceededError("no answer");
  Check();
  EXPECT_EQ(clients_, 2);
  Later();
  AnswerDescribe(absl::DeadlineExceededError("no answer"));
  EXPECT_EQ(clients_, 3);
}

// --- loads ---

TEST_F(EngineServerTest, RecordsReplaceQuestionsWhileTheyCome) {
  ServeTwoRanks();
  Check();
  ASSERT_EQ(asked_.records.size(), 1u);
  Answer(Loads{{4, {1, 10}}, {5, {2, 20}}});
  EXPECT_EQ(Told(0), 1);
  EXPECT_EQ(Told(1), 2);
  Record({{4, {3, 30}}, {5, {4, 40}}});
  EXPECT_EQ(Told(0), 3);
  EXPECT_EQ(Told(1), 4);
  Check();
  EXPECT_TRUE(asked_.loads.empty());
  Check();
  EXPECT_EQ(asked_.loads.size(), 1u) << "none has come since the last check";
  EXPECT_EQ(asked_.records.size(), 1u);
}

// vLLM's servicer repeats the record of one rank while no rank has events.
TEST_F(EngineServerTest, RanksWithoutRecordsAreAskedAbout) {
  ServeTwoRanks();
  Check();
  Answer(Loads{{4, {1, 10}}, {5, {2, 20}}});
  Record({{4, {3, 30}}, {0, {9, 90}}, {1'000, {9, 90}}, {-1, {9, 90}}});
  Check();
  Record({{4, {5, 50}}});
  Answer(Loads{{4, {6, 60}}, {5, {7, 70}}});
  EXPECT_EQ(Told(0), 5) << "the record came after the question";
  EXPECT_EQ(Told(1), 7);
}

TEST_F(EngineServerTest, AnEngineThatSendsNoRecordsIsAskedEveryTime) {
  ServeTwoRanks();
  Check();
  std::move(asked_.records.back()->callbacks.on_end)(absl::UnimplementedError("no events"));
  for (int64_t i = 0; i < 5; ++i) {
    Answer(Loads{{4, {i, 10}}, {5, {i, 20}}});
    EXPECT_EQ(Told(1), i);
    Check();
  }
  EXPECT_EQ(asked_.records.size(), 1u) << "it has said that it does not";
}

TEST_F(EngineServerTest, RecordsThatEndAreSubscribedToAgain) {
  ServeTwoRanks();
  Check();
  std::move(asked_.records.back()->callbacks.on_end)(absl::DataLossError("a restarted publisher"));
  RunEvents();
  Answer(absl::UnimplementedError("no loads"));
  EXPECT_EQ(Told(0), -1);
  Check();
  EXPECT_EQ(asked_.records.size(), 1u) << "at once";
  absl::SleepFor(EngineLink::kShortestRetry);
  Check();
  ASSERT_EQ(asked_.records.size(), 2u);
  Record({{5, {4, 40}}});
  EXPECT_EQ(Told(1), 4);
  Check();
  EXPECT_EQ(Told(1), 4);
  Check();
  EXPECT_EQ(Told(1), -1) << "nothing has come of it for a while";
}

TEST_F(EngineServerTest, ALostServersRecordsAreCancelledAndIgnored) {
  ServeTwoRanks();
  Check();
  const std::shared_ptr<TestRecords> first = asked_.records.back();
  asked_.health = absl::UnavailableError("gone");
  Check();
  EXPECT_TRUE(first->cancelled);
  asked_.health = absl::OkStatus();
  channels_.clear();
  ServeTwoRanks();
  Check();
  ASSERT_EQ(asked_.records.size(), 2u);
  first->loads = {{4, {7, 70}}};
  first->callbacks.on_records();
  std::move(first->callbacks.on_end)(absl::UnimplementedError("late"));
  RunEvents();
  EXPECT_EQ(Told(0), -1);
  Record({{4, {3, 30}}});
  EXPECT_EQ(Told(0), 3);
  server_.reset();
  EXPECT_TRUE(asked_.records.back()->cancelled) << "a server that is forgotten";
}

// --- requests ---

TEST_F(EngineServerTest, ARankIsNamedWhereThereAreSeveral) {
  for (const int32_t all : {1, 2}) {
    channels_.clear();
    Later();
    Describe({.ranks = all, .all_ranks = all, .slots = 4, .max_sequence_tokens = 64});
    ASSERT_EQ(channels_.size(), static_cast<size_t>(all));
    Place();
    asked_.health = absl::UnavailableError("gone");
    Check();
    asked_.health = absl::OkStatus();
  }
  EXPECT_THAT(asked_.ranks, ElementsAre(std::nullopt, 1));
}

}  // namespace
}  // namespace bfio::router
