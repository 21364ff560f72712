// A server's ranks: when they attach and leave as lists change, when a server counts as replaced, and how
// they learn of the engine's loads.
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/kv_publisher.h"
#include "tests/unit/router/engine_link/engine_server_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Its ranks would seem to be the emptiest, and be lost a second later with the requests placed there.
TEST_F(EngineServerTest, AnUnhealthyServerDoesNotAttachAndIsAskedLessOften) {
  asked_.health = absl::UnavailableError("the engine has died");
  absl::Duration before = absl::ZeroDuration();
  for (int i = 0; i < 3; ++i) {
    Attach();
    EXPECT_THAT(seen_, IsEmpty());
    const absl::Duration pause = server_->next_deadline() - MonotonicNow();
    EXPECT_GT(pause, before);
    before = pause;
  }
  asked_.health = absl::OkStatus();
  Attach();
  EXPECT_THAT(seen_, ElementsAre("joins"));
}

TEST_F(EngineServerTest, AServerAttachesOnlyWhileItIsListed) {
  Later();
  server_->Retire();
  Describe();
  EXPECT_THAT(seen_, IsEmpty()) << "it was removed while it answered";
  EXPECT_TRUE(server_->gone());
  server_->Keep();
  Attach();
  EXPECT_THAT(seen_, ElementsAre("joins")) << "it was listed again before the link had forgotten it";
  for (const bool keep : {true, false}) {
    server_->Retire();
    EXPECT_FALSE(server_->gone());
    channel_->SendShutdown("drained");
    RunEvents();
    if (keep) server_->Keep();
    CutOff(absl::OkStatus());
    EXPECT_EQ(server_->gone(), !keep);
    Later();
  }
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves", "joins", "leaves"));
  server_->Keep();
  Later();
  EXPECT_EQ(seen_.back(), "joins");
}

// The channel's contract requires it; until then the router keeps an entry for each connection.
TEST_F(EngineServerTest, AConnectionThatTheRouterClosesIsGone) {
  Attach();
  const MemberId first = channel_->id();
  CutOff();
  EXPECT_THAT(gone_, ElementsAre(first));
  Later();
  const MemberId second = channel_->id();
  channel_->SendShutdown("drained");
  CutOff();
  Lose();
  EXPECT_THAT(gone_, ElementsAre(first, second)) << "once each";
}

TEST_F(EngineServerTest, AHealthCheckThatBeganBeforeACallFailedDoesNotCount) {
  Attach();
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

// Otherwise each request costs an engine's connection a stream, and the router its memory, for ever.
TEST_F(EngineServerTest, AStreamThatStaysOpenAfterItsEndIsCancelled) {
  Attach();
  Place();
  std::move(asked_.streams.at(0)->callbacks.on_end)(EngineEnd{.finish = EngineFinish::kStop});
  RunEvents();
  Later();
  EXPECT_FALSE(asked_.streams.at(0)->cancelled) << "it may be about to close";
  server_->OnTimer(MonotonicNow() + absl::Seconds(40));
  EXPECT_TRUE(asked_.streams.at(0)->cancelled);
}

TEST_F(EngineServerTest, ARankThatBringsNoTokenAttachesAfterLongerAndLongerPauses) {
  Attach();
  // So that the server's next deadline is that of attaching.
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
  Bring({100});
  CutOff();
  EXPECT_LE(server_->next_deadline() - MonotonicNow(), EngineLink::kShortestRetry);
}

// The router remembers that a process was drained, by its identity: a rank that attaches again must name the
// router that it followed.
TEST_F(EngineServerTest, ARankThatAttachesAgainNamesTheRouterThatItFollowed) {
  Attach();
  EXPECT_EQ(router_instance_, 0u);
  Follow(77);
  CutOff();
  Later();
  EXPECT_EQ(router_instance_, 77u);
  Lose();
  Attach();
  EXPECT_EQ(router_instance_, 0u) << "it may be another process";
  Follow(77);
  server_->Retire();
  server_->Keep();
  CutOff();
  Later();
  EXPECT_EQ(seen_.back(), "joins");
  EXPECT_EQ(router_instance_, 0u) << "a server that is listed again is not drained";
  Follow(77, 2);
  CutOff();
  Later();
  EXPECT_EQ(router_instance_, 77u) << "a later drain holds";
}

// The engine's front end is healthy, and the silent rank would appear to be the emptiest.
TEST_F(EngineServerTest, ARankThatWasSilentGetsOneRequestUntilItsFirstToken) {
  // How many of two requests the rank takes after it attaches again.
  const auto taken = [&] {
    Later();
    asked_.streams.clear();
    Place();
    Place();
    return asked_.streams.size();
  };
  Attach();
  Place();
  CutOff();
  EXPECT_EQ(taken(), 1u);
  EXPECT_EQ(rejected_, 1u);
  EXPECT_EQ(extra_slots_, 1 - 4);
  Bring({100});
  Place();
  EXPECT_EQ(asked_.streams.size(), 2u);
  CutOff();
  EXPECT_EQ(taken(), 1u);
  CutOff(absl::OkStatus());
  EXPECT_EQ(taken(), 1u) << "until it does, however it leaves";
  server_->OnStep(0, channel_->id(), {.step = 1, .prompt_tokens = 3});
  RunEvents();
  CutOff(absl::OkStatus());
  EXPECT_EQ(taken(), 2u) << "or until it reports work";
}

// The engine's first message may be sent before the cache lookup.
TEST_F(EngineServerTest, CachedTokensAreThoseOfTheFirstMessageWithTokens) {
  Attach();
  EXPECT_TRUE(prefix_cache_);
  Place();
  for (const auto& [ids, cached] : {std::pair(std::vector<uint32_t>(), 0), {{100}, 2}, {{101}, 2}}) {
    Bring(ids, cached);
    server_->OnTimer(MonotonicNow() + absl::Seconds(1));
    RunEvents();
    EXPECT_EQ(cached_, ids.empty() ? std::vector<int64_t>() : std::vector<int64_t>{2});
  }
}

// --- servers that are replaced ---

// A health check cannot show the replacement: the server that now has the address is healthy.
TEST_F(EngineServerTest, AServerWithAnotherDescriptionLeavesAndAttachesWithIt) {
  for (const EngineDescription& other :
       std::vector<EngineDescription>{{.slots = 4, .max_sequence_tokens = 64, .model = "other"},
                                      {.slots = 4, .kv_tokens = 100, .max_sequence_tokens = 64},
                                      {.slots = 4, .max_sequence_tokens = 65},
                                      {.slots = 5, .max_sequence_tokens = 64},
                                      {.ranks = 2, .all_ranks = 2, .slots = 4, .max_sequence_tokens = 64}}) {
    SCOPED_TRACE(gone_.size());
    Attach();
    channels_.clear();
    Place();
    const MemberId before = channel_->id();
    gone_.clear();
    rejected_ = 0;
    Fail(asked_.streams.size() - 1);
    Later();
    EXPECT_EQ(rejected_, 0u) << "not before the engine has described itself";
    AnswerDescribe(other);
    EXPECT_EQ(rejected_, 0u) << "the request is lost with the server";
    EXPECT_THAT(gone_, ElementsAre(before));
    Attach(other);
    EXPECT_EQ(channels_.size(), static_cast<size_t>(other.ranks));
    Lose();
  }
}

// All requests would wait for it, or for none of the servers that come after it.
TEST_F(EngineServerTest, OneThatComputesPromptsForOthersServesOnlyBesideOneThatDecodesThem) {
  const EngineDescription prefill = {
      .slots = 4, .max_sequence_tokens = 64, .hands_over = true, .kv_connector = "Nixl"};
  Attach(prefill);
  EXPECT_THAT(seen_, IsEmpty());
  servers_.serving["b"] = {.kv_connector = "Nixl"};
  Attach(prefill);
  EXPECT_THAT(seen_, ElementsAre("joins"));
  Check();
  EXPECT_THAT(gone_, IsEmpty());
  servers_.serving.erase("b");
  Check();
  EXPECT_THAT(gone_, ElementsAre(channel_->id()));
}

// vLLM keeps it for 30 s, unless an engine says that it does not need it.
TEST_F(EngineServerTest, KvThatIsSentToNoRankIsFreed) {
  servers_.serving["b"] = {.kv_connector = "NixlConnector"};
  std::vector<std::string> freed;
  servers_.free = [&](const std::string& parameters) { freed.push_back(parameters); };
  Attach({.slots = 4,
          .max_sequence_tokens = 64,
          .hands_over = true,
          .kv_connector = "NixlConnector",
          .kv_block_tokens = 2});
  for (const bool sent : {true, false}) {
    Place(/*hands_over=*/true);
    EXPECT_EQ(asked_.kv_source.least_blocks, 2u) << "of a prompt of 3 tokens";
    EngineEnd end;
    end.hand_off = std::make_shared<const RequestHandOff>(RequestHandOff{"kv"});
    std::move(asked_.streams.back()->callbacks.on_end)(std::move(end));
    RunEvents();
    ASSERT_NE(handed_over_, nullptr);
    if (sent) handed_over_->kept->Sent();
    EXPECT_THAT(freed, IsEmpty());
    handed_over_ = nullptr;
    RunEvents();
  }
  EXPECT_THAT(freed, ElementsAre("kv"));
}

TEST_F(EngineServerTest, WhatADescriptionLacksEndsNothingAndSizesWaitUntilNoRequestRuns) {
  const EngineDescription two{
      .ranks = 2, .all_ranks = 3, .slots = 4, .kv_tokens = 500, .max_sequence_tokens = 64};
  Attach(two);
  Place();
  EngineDescription other = two;
  const auto describe = [&] {
    server_->OnTimer(MonotonicNow() + 2 * EngineLink::kDescribeAgain);
    RunEvents();
    AnswerDescribe(other);
  };
  for (const int32_t ranks : {1, 0, 2}) {
    other.ranks = ranks;
    describe();
  }
  for (const int32_t slots : {0, 4}) {
    other.slots = slots;
    describe();
  }
  for (const int64_t kv_tokens : {0, 484}) {
    other.kv_tokens = kv_tokens;
    describe();
  }
  EXPECT_EQ(channels_.size(), 2u);
  other.ranks = 3;
  describe();
  EXPECT_EQ(channels_.size(), 3u) << "a rank that reports later is added";
  described_ = other;
  Check();
  EXPECT_THAT(gone_, IsEmpty());
  std::move(asked_.streams.at(0)->callbacks.on_end)(EngineEnd{});
  RunEvents();
  Check();
  Check();
  EXPECT_EQ(gone_.size(), 3u);
  EXPECT_EQ(channels_.size(), 6u) << "all attach again, with the other sizes";
}

TEST_F(EngineServerTest, AFailedHealthCheckLosesAServerOnlyWithAnotherSign) {
  for (const absl::Status& failed :
       {absl::DeadlineExceededError("busy"), absl::FailedPreconditionError("not healthy")}) {
    Attach();
    Place();
    gone_.clear();
    asked_.health = failed;
    Check();
    Bring({100});
    Check();
    EXPECT_THAT(gone_, IsEmpty()) << "it has brought a token since the first check";
    Check();
    EXPECT_EQ(gone_.size(), 1u);
    asked_.health = absl::OkStatus();
    Attach();
    Place();
    asked_.health = failed;
    Fail(asked_.streams.size() - 1);
    Check();
    EXPECT_EQ(gone_.size(), 2u) << "a call has failed as well";
    asked_.health = absl::OkStatus();
  }
}

TEST_F(EngineServerTest, AServerWithTheSameDescriptionGoesOn) {
  Attach();
  for (int i = 0; i < 3; ++i) Place();
  // The failure belongs to the request.
  const auto fail = [&](size_t call, const absl::StatusOr<EngineDescription>& answer) {
    Fail(call);
    Later();
    EXPECT_EQ(rejected_, call);
    AnswerDescribe(answer);
  };
  fail(0, described_);
  fail(1, absl::DeadlineExceededError("no loads in time"));
  EXPECT_EQ(rejected_, 2u);
  EXPECT_THAT(gone_, IsEmpty());
  EXPECT_EQ(clients_, 1);
  fail(2, absl::UnavailableError("gone"));
  EXPECT_EQ(rejected_, 2u) << "a server that is gone as it describes itself is lost";
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(EngineServerTest, AServerWhoseRecordsEndDescribesItselfAgain) {
  ServeTwoRanks();
  Check();
  std::move(asked_.records.back()->callbacks.on_end)(absl::UnavailableError("connection reset"));
  RunEvents();
  Later();
  AnswerDescribe(described_);
  EXPECT_THAT(gone_, IsEmpty());
  Later();
  EXPECT_THAT(asked_.describe, IsEmpty()) << "they have ended once";
}

TEST_F(EngineServerTest, HoweverManyCallsFailTheServerDescribesItselfOnceASecond) {
  Attach();
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
  EXPECT_LE(descriptions, 1 + (MonotonicNow() - start) / absl::Seconds(1));
  Check();
  EXPECT_EQ(rejected_, kCalls) << "none waits for a description of its own";
}

// --- loads ---

// vLLM's servicer repeats the record of one rank while no rank has events.
TEST_F(EngineServerTest, RecordsReplaceQuestionsWhileTheyCome) {
  ServeTwoRanks();
  Check();
  ASSERT_EQ(asked_.records.size(), 1u);
  Answer(Loads{{4, {1, 10}}, {5, {2, 20}}});
  EXPECT_THAT(ReportedLoads(), ElementsAre(1, 2));
  Record({{4, {3, 30}}, {5, {4, 40}}});
  EXPECT_THAT(ReportedLoads(), ElementsAre(3, 4));
  Check();
  EXPECT_TRUE(asked_.loads.empty());
  Check();
  EXPECT_EQ(asked_.loads.size(), 1u) << "none has come since the last check";
  EXPECT_EQ(asked_.records.size(), 1u);
  Answer(Loads{{4, {1, 10}}, {5, {2, 20}}});
  Record({{4, {3, 30}}, {0, {9, 90}}, {1'000, {9, 90}}, {-1, {9, 90}}});
  Check();
  Record({{4, {5, 50}}});
  Answer(Loads{{4, {6, 60}}, {5, {7, 70}}});
  EXPECT_THAT(ReportedLoads(), ElementsAre(5, 7)) << "the record of one came after the question";
}

TEST_F(EngineServerTest, ALostServersRecordsAreCancelledAndIgnored) {
  ServeTwoRanks();
  Check();
  const std::shared_ptr<TestRecords> first = asked_.records.back();
  Lose();
  EXPECT_TRUE(first->cancelled);
  channels_.clear();
  ServeTwoRanks();
  Check();
  ASSERT_EQ(asked_.records.size(), 2u);
  first->loads = {{4, {7, 70}}};
  first->callbacks.on_records();
  std::move(first->callbacks.on_end)(absl::UnimplementedError("late"));
  RunEvents();
  EXPECT_EQ(ReportedLoads()[0], -1);
  Record({{4, {3, 30}}});
  EXPECT_EQ(ReportedLoads()[0], 3);
  server_.reset();
  EXPECT_TRUE(asked_.records.back()->cancelled) << "a server that is forgotten";
}

TEST_F(EngineServerTest, AClientThatIsReplacedTakesItsRecordsAlong) {
  ServeTwoRanks();
  Check();
  const std::shared_ptr<TestRecords> first = asked_.records.back();
  asked_.health = absl::DeadlineExceededError("no answer");
  Check();
  EXPECT_EQ(clients_, 2);
  EXPECT_TRUE(first->cancelled);
  asked_.health = absl::OkStatus();
  Check();
  ASSERT_EQ(asked_.records.size(), 2u) << "the new client subscribes";
  std::move(first->callbacks.on_end)(absl::UnimplementedError("late"));
  RunEvents();
  Record({{4, {3, 30}}});
  EXPECT_EQ(ReportedLoads()[0], 3);
  EXPECT_THAT(gone_, IsEmpty());
}

TEST_F(EngineServerTest, WhatARankPublishesOfItsCacheIsReportedAndAgainWhenItAttachesAgain) {
  testing::KvPublisher engine;
  const EngineAddress address = {.protocol = "vllm",
                                 .server = {"127.0.0.1", 1},
                                 .kv_events = engine.port(),
                                 .kv_replay = engine.replay_port(),
                                 .exact_prefixes = true};
  server_ = std::make_shared<EngineServer>(address, &options_, this, events_, &servers_, nullptr);
  const std::vector<uint32_t> prompt(128, 5);
  engine.Send(0, testing::KvPublisher::Packed(
                     {1.5, {{"BlockStored", {7, 8}, nullptr, prompt, 64, nullptr, "GPU"}}, 0}));
  Attach();
  const auto reported = [&] {
    Follow(1);
    channel_->SendPlan({.epoch = 1}, {});
    Check();
    for (cached_blocks_.clear(); cached_blocks_.empty(); absl::SleepFor(absl::Milliseconds(1)))
      Record({{0, EngineLoad{}}});
    return std::set<uint64_t>{cached_blocks_.front().block, cached_blocks_.back().block};
  };
  const core::PrefixBlocks names = core::NamePrefixBlocks(prompt);
  EXPECT_EQ(reported(), std::set<uint64_t>(names->begin(), names->end()));
  CutOff();
  Later();
  EXPECT_EQ(reported(), std::set<uint64_t>(names->begin(), names->end()));
}

}  // namespace
}  // namespace bfio::router
