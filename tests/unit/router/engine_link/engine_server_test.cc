// A server's ranks: when they attach and leave as lists change, when a server counts as replaced, and what
// its requests contain.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

TEST_F(EngineServerTest, AServerRemovedWhileItAnswersNeverAttaches) {
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

TEST_F(EngineServerTest, AServerListedAgainWhileLeavingAttachesAgain) {
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

// The router remembers that a process was drained, by its identity.
TEST_F(EngineServerTest, AServerThatIsListedAgainIsNotDrained) {
  Later();
  Describe();
  channel_->SendEpoch({.epoch = 1, .router_instance = 77});
  RunEvents();
  server_->Retire();
  server_->Keep();
  CutOff();
  Later();
  RunEvents();
  EXPECT_EQ(seen_.back(), "joins");
  EXPECT_EQ(router_instance_, 0u);
  channel_->SendEpoch({.epoch = 2, .router_instance = 77});
  RunEvents();
  CutOff();
  Later();
  RunEvents();
  EXPECT_EQ(router_instance_, 77u) << "a later drain holds";
}

TEST_F(EngineServerTest, ARetiredServerStaysAwayUntilItIsListedAgain) {
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

// The channel's contract requires it; until then the router keeps an entry for each connection.
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
  EngineTokens tokens;
  tokens.ids = {100};
  asked_.streams.back()->callbacks.on_tokens(std::move(tokens));
  RunEvents();
  CutOff();
  EXPECT_LE(server_->next_deadline() - MonotonicNow(), EngineLink::kShortestRetry);
}

// A drain applies to the process, so a rank that attaches again must name the router that it followed.
TEST_F(EngineServerTest, ARankThatAttachesAgainNamesTheRouterThatItFollowed) {
  Later();
  Describe();
  EXPECT_EQ(router_instance_, 0u);
  channel_->SendEpoch({.epoch = 1, .router_instance = 77});
  RunEvents();
  CutOff();
  Later();
  RunEvents();
  EXPECT_EQ(router_instance_, 77u);
  asked_.health = absl::UnavailableError("gone");
  Check();
  asked_.health = absl::OkStatus();
  Later();
  Describe();
  EXPECT_EQ(router_instance_, 0u) << "it may be another process";
}

// The engine's front end is healthy, and the silent rank would appear to be the emptiest.
TEST_F(EngineServerTest, ARankThatWasSilentGetsOneRequestUntilItsFirstToken) {
  Later();
  Describe();
  Place();
  CutOff();
  Later();
  asked_.streams.clear();
  rejected_ = 0;
  Place();
  Place();
  EXPECT_EQ(asked_.streams.size(), 1u);
  EXPECT_EQ(rejected_, 1u);
  EXPECT_EQ(extra_slots_, 1 - 4);
  EngineTokens tokens;
  tokens.ids = {100};
  asked_.streams.back()->callbacks.on_tokens(std::move(tokens));
  RunEvents();
  Place();
  EXPECT_EQ(asked_.streams.size(), 2u);
  CutOff();
  Later();
  Place();
  channel_->Close(absl::OkStatus());
  RunEvents();
  Later();
  Place();
  Place();
  EXPECT_EQ(asked_.streams.size(), 4u) << "until it does, however it leaves";
}

TEST_F(EngineServerTest, OrUntilItReportsWork) {
  Later();
  Describe();
  Place();
  CutOff();
  Later();
  Place();
  EngineStep step;
  step.step = 1;
  step.prompt_tokens = 3;
  server_->OnStep(0, channel_->id(), step);
  RunEvents();
  channel_->Close(absl::OkStatus());
  RunEvents();
  Later();
  asked_.streams.clear();
  Place();
  Place();
  EXPECT_EQ(asked_.streams.size(), 2u);
}

// The engine's first message may be sent before the cache lookup.
TEST_F(EngineServerTest, CachedTokensAreThoseOfTheFirstMessageWithTokens) {
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

// A health check cannot show the replacement: the server that now has the address is healthy.
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

// An idle server without records may be replaced without any visible failure.
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

// On a dead connection the kernel would retransmit for many minutes.
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
