// The life of a group with a barrier: it forms, serves, loses ranks, forms anew, follows a router that began
// anew, and lets workers go; and what both kinds of groups have in common.
#include "router/group/group.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/group_world.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

class BarrierGroupTest : public ::testing::Test {
 protected:
  static GroupSetOptions Options(int32_t workers) {
    GroupSetOptions options;
    options.group.workers = workers;
    return options;
  }
  void TearDown() override { EXPECT_THAT(world_->broken(), IsEmpty()); }

  void Start(int32_t workers) { Start(Options(workers)); }
  void Start(const GroupSetOptions& options) {
    options_ = options;
    world_ = std::make_unique<GroupWorld>(options);
  }
  // These workers serve.
  void Serve(const std::vector<std::string>& names) {
    Start(static_cast<int32_t>(names.size()));
    world_->Serve(names);
    ASSERT_EQ(world_->Ranks(), names);
  }
  void Submit(core::RequestId first, core::RequestId last, uint32_t max_new = 20, bool resumable = true) {
    for (core::RequestId id = first; id <= last; ++id)
      ASSERT_TRUE(world_->book().Submit(id, 10, max_new, resumable).ok());
    world_->Decide();
  }
  // Of its last connection.
  absl::Status ClosedWith(const std::string& name, MemberId member) {
    for (const CloseMember& close : world_->closed) {
      if (close.to == member) return close.status;
    }
    return absl::UnknownError(name + " was not closed");
  }
  // Until its group serves.
  void Form() {
    for (int i = 0; i < 100; ++i) {
      world_->ReadAll();
      if (world_->group().serving()) return;
      world_->Wait();
    }
    FAIL() << "the group does not form";
  }
  absl::Time DeadlineIn(absl::Duration time) const { return world_->now + time; }

  GroupSetOptions options_;
  std::unique_ptr<GroupWorld> world_;
};

// --- it forms and serves ---

TEST_F(BarrierGroupTest, TheFirstEpochWaitsForAsManyWorkersAsItIsTold) {
  Start(3);
  world_->Join("a");
  world_->Join("b");
  EXPECT_EQ(world_->groups().next_deadline(), absl::InfiniteFuture());
  EXPECT_FALSE(world_->group().complete());
  world_->Join("c");
  world_->Wait();
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_EQ(world_->Worker(name).inbox.size(), 1u);
    const auto offer = std::get<EpochOffer>(world_->Worker(name).inbox.front());
    EXPECT_EQ(offer.epoch, 1u);
    EXPECT_EQ(offer.world_size, 3u);
    EXPECT_EQ(offer.rank, static_cast<uint32_t>(*name - 'a'));
    EXPECT_EQ(offer.communicator_id, "at a");
    EXPECT_FALSE(offer.independent);
    EXPECT_FALSE(offer.announce);
    EXPECT_EQ(offer.group, "0");
    EXPECT_EQ(offer.step_timeout, options_.group.step_timeout);
    EXPECT_EQ(offer.form_timeout, options_.group.form_timeout);
    EXPECT_EQ(offer.retain, options_.group.retain);
    EXPECT_EQ(offer.router_instance, options_.group.instance);
  }
  world_->Read("a");
  world_->Read("b");
  EXPECT_FALSE(world_->group().serving()) << "c has not answered";
  world_->Read("c");
  EXPECT_TRUE(world_->group().serving());
  EXPECT_TRUE(world_->group().complete());
  EXPECT_EQ(world_->group().capacity().kv_tokens, 3000);
  EXPECT_EQ(world_->group().capacity().max_sequence_tokens, 1000);
}

TEST_F(BarrierGroupTest, RequestsRunToTheirEnd) {
  Serve({"a", "b"});
  Submit(1, 30);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 30u);
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 30 * 20);
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, LockstepPlansAreForTheNextStep) {
  GroupSetOptions options = Options(2);
  options.group.plan_mode = core::PlanMode::kLockstep;
  Start(options);
  world_->Serve({"a", "b"});
  Submit(1, 30);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 30u);
}

TEST_F(BarrierGroupTest, AnIdleGroupGetsNoPlan) {
  Serve({"a", "b"});
  EXPECT_EQ(world_->parts["a"], 0);
  Submit(1, 1);
  EXPECT_EQ(world_->parts["a"], 1);
  EXPECT_EQ(world_->parts["b"], 1) << "every rank gets its part, empty ones too";
  world_->Run();
  const int64_t parts = world_->parts["a"];
  world_->Run();
  EXPECT_EQ(world_->parts["a"], parts);
}

TEST_F(BarrierGroupTest, TheShortestOfTheLongestSequencesBoundsWhatFits) {
  Start(2);
  world_->Worker("a").kv_tokens = 500;
  world_->Worker("b").kv_tokens = 700;
  world_->Serve({"a", "b"});
  EXPECT_EQ(world_->group().capacity().kv_tokens, 1200);
  EXPECT_EQ(world_->group().capacity().max_sequence_tokens, 500);
}

TEST_F(BarrierGroupTest, NewcomersAreTakenInWithoutStoppingAtOnce) {
  Serve({"a", "b"});
  Submit(1, 4);
  world_->Join("c");
  EXPECT_TRUE(world_->group().serving());
  EXPECT_TRUE(world_->Step("a")) << "while it settles the others step";
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(100));
  EXPECT_FALSE(world_->group().serving());
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(world_->group().epoch(), 2u);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_EQ(world_->book().placed_again, 0) << "nobody was lost";
}

TEST_F(BarrierGroupTest, ThoseWhoComeWhileItFormsAreTakenInAfterwards) {
  Start(3);
  // It brings requests of an earlier router: the others are not waited for.
  world_->Worker("a").followed = 9;
  world_->Join("a");
  world_->Wait();
  world_->Join("b");
  world_->ReadAll();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  world_->Wait();
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
}

// --- it loses ranks ---

TEST_F(BarrierGroupTest, ALostRanksRequestsAreReplayedOldestFirst) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  world_->Kill("b");
  EXPECT_FALSE(world_->group().serving());
  EXPECT_THAT(world_->lost, IsEmpty()) << "until it is known who holds what";
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(20));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  EXPECT_EQ(world_->lost.size(), 4u);
  EXPECT_TRUE(std::is_sorted(world_->lost.rbegin(), world_->lost.rend()));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
  EXPECT_EQ(world_->book().placed_again, 4);
}

TEST_F(BarrierGroupTest, ADeathIsToldOfTheRequestsOnTheWorkerAndOfNoOthers) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const std::vector<core::RequestId>& died_with = world_->book().died_with;
  world_->Kill("b");
  EXPECT_EQ(died_with.size(), 4u) << "while it is still known who was there";
  Form();
  std::vector<core::RequestId> lost = world_->lost;
  std::sort(lost.begin(), lost.end());
  EXPECT_EQ(died_with, lost);
  // It has four slots, and four of the eight wait.
  world_->Kill("a");
  EXPECT_EQ(died_with.size(), 8u);
}

TEST_F(BarrierGroupTest, WhatASilentRankHeldWasOnItAsItDied) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  while (world_->Attached("b")) world_->Wait();
  EXPECT_EQ(world_->book().died_with.size(), 4u);
}

TEST_F(BarrierGroupTest, AWorkerThatLeavesIsNoDeath) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const MemberId b = world_->Worker("b").member;
  world_->Do([&](GroupSet& set, Commands& out) { set.OnLeave(b, "SIGTERM", world_->now, out); });
  world_->Kill("b");  // its patience with its requests ends
  EXPECT_THAT(world_->book().died_with, IsEmpty());
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  Form();
  world_->Run();
  EXPECT_FALSE(world_->Attached("a"));
  EXPECT_THAT(world_->book().died_with, IsEmpty());
}

TEST_F(BarrierGroupTest, AnEpochThatIsLostIsClosed) {
  Serve({"a", "b"});
  world_->Break("a");
  world_->Break("b");
  EXPECT_TRUE(world_->group().empty());
  EXPECT_FALSE(world_->groups().serving());
  EXPECT_TRUE(world_->group().complete()) << "it has served once";
  world_->Join("a");
  world_->Wait();
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a")) << "once formed it does not wait for all";
}

TEST_F(BarrierGroupTest, AWorkerThatComesBackDropsWhatItHeld) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  ASSERT_EQ(world_->Worker("b").residents.size(), 4u);
  world_->Break("b");
  world_->Join("b");
  world_->Wait();
  const auto offer = std::get<EpochOffer>(world_->Worker("b").inbox.back());
  EXPECT_EQ(offer.cancellations.size(), 4u);
  Form();
  EXPECT_THAT(world_->Worker("b").residents, IsEmpty());
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, ASilentRankIsCutOffWhenOthersAreFurther) {
  Serve({"a", "b"});
  Submit(1, 8);
  const MemberId b = world_->Worker("b").member;
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  const absl::Time since = world_->now;
  while (world_->Attached("b")) world_->Wait();
  EXPECT_EQ(world_->now - since, options_.group.step_timeout);
  EXPECT_EQ(ClosedWith("b", b), absl::DeadlineExceededError("no step report in time"));
}

TEST_F(BarrierGroupTest, AGroupThatReportsNothingIsTakenToBeStuck) {
  Serve({"a", "b"});
  Submit(1, 8);
  const absl::Time since = world_->now;
  while (world_->group().serving()) world_->Wait();
  EXPECT_EQ(world_->now - since, 2 * options_.group.step_timeout);
  EXPECT_THAT(world_->log, IsSupersetOf({HasSubstr("no rank has reported a step in time")}));
  EXPECT_TRUE(world_->Attached("a") && world_->Attached("b"));
}

TEST_F(BarrierGroupTest, AParkedGroupMayBeSilentForAsLongAsItLikes) {
  Serve({"a", "b"});
  world_->Advance(absl::Hours(2));
  EXPECT_TRUE(world_->group().serving());
  Submit(1, 2);
  world_->Run();
  world_->Advance(absl::Hours(2));
  EXPECT_TRUE(world_->group().serving());
  EXPECT_EQ(world_->book().completed.size(), 2u);
}

// --- a barrier fails ---

TEST_F(BarrierGroupTest, WhoStaysSilentAfterABarriersFailureIsLeftOut) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  const MemberId c = world_->Worker("c").member;
  world_->FailBarrier("a");
  EXPECT_FALSE(world_->group().serving());
  world_->FailBarrier("b");
  const absl::Time since = world_->now;
  while (world_->Attached("c")) world_->Wait();
  EXPECT_LE(world_->now - since, absl::Milliseconds(100));
  EXPECT_EQ(ClosedWith("c", c).code(), absl::StatusCode::kDeadlineExceeded);
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  world_->Join("c");
  EXPECT_TRUE(world_->Attached("c")) << "it is not refused when it comes back";
}

TEST_F(BarrierGroupTest, RanksHaveTimeToSayThatTheirBarrierFailed) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a");
  // Longer than the members' own deaths are waited for.
  world_->Advance(absl::Milliseconds(60));
  world_->FailBarrier("b");
  world_->FailBarrier("c");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, WhenAllSayThatTheBarrierFailedNobodyIsLeftOut) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  for (const char* name : {"a", "b", "c"}) world_->FailBarrier(name);
  const absl::Time since = world_->now;
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(world_->now - since, absl::Milliseconds(20)) << "they need not be waited for";
  EXPECT_EQ(world_->book().placed_again, 0) << "what they hold they still hold";
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 9u);
}

TEST_F(BarrierGroupTest, ARankThatOthersDoNotReachIsRefusedForAWhile) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a", {2});
  world_->FailBarrier("b", {2});
  world_->FailBarrier("c");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  world_->Join("c");
  EXPECT_FALSE(world_->Attached("c"));
  EXPECT_EQ(world_->closed.back().status.code(), absl::StatusCode::kUnavailable);
  world_->Advance(absl::Seconds(2));
  world_->Join("c");
  EXPECT_TRUE(world_->Attached("c"));
}

TEST_F(BarrierGroupTest, ARankThatReachesHardlyAnyOtherIsItselfTheOne) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a", {1, 2});
  world_->FailBarrier("b");
  world_->FailBarrier("c");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("b", "c"));
}

TEST_F(BarrierGroupTest, ARankThatWaitedForAnotherIsNotTheCause) {
  Serve({"a", "b", "c", "d"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a", {1});
  world_->FailBarrier("b", {3});
  world_->FailBarrier("c");
  world_->FailBarrier("d");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
}

// --- forming fails ---

TEST_F(BarrierGroupTest, OneFailureToFormIsBadLuck) {
  Start(2);
  world_->Join("a");
  world_->Join("b");
  world_->Wait();
  world_->Read("a");
  world_->Read("b", "no memory");
  EXPECT_FALSE(world_->group().serving());
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(500));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
}

TEST_F(BarrierGroupTest, TheOneThatWasNeverPartOfAWorkingGroupIsTheLikeliestCause) {
  Serve({"a", "b"});
  world_->Join("c");
  world_->Wait();
  for (int attempt = 0; attempt < 2; ++attempt) {
    world_->Read("a", "no barrier");
    world_->Read("b", "no barrier");
    world_->Read("c");
    if (attempt == 0) world_->Wait();
  }
  EXPECT_FALSE(world_->Attached("c"));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
}

TEST_F(BarrierGroupTest, AFailureLongAgoDoesNotCount) {
  Serve({"a", "b"});
  for (int i = 0; i < 2; ++i) {
    world_->Join(i == 0 ? "c" : "d");
    world_->Wait();
    world_->ReadAll();
    Form();
    // Once each time, with a success between.
    world_->Join(i == 0 ? "e" : "f");
    world_->Wait();
    for (auto& [name, worker] : world_->workers) world_->Read(name, name == "a" ? "no barrier" : "");
    EXPECT_TRUE(world_->Attached(i == 0 ? "e" : "f"));
    Form();
  }
}

TEST_F(BarrierGroupTest, AWorkerThatDoesNotAnswerIsLeftOutForEverLongerTimes) {
  Serve({"a"});
  for (const absl::Duration penalty : {absl::Seconds(1), absl::Seconds(2), absl::Seconds(4)}) {
    world_->Join("b");
    ASSERT_TRUE(world_->Attached("b"));
    world_->Wait();
    world_->Read("a");
    const absl::Time asked = world_->now;
    while (world_->Attached("b")) world_->Wait();
    EXPECT_EQ(world_->now - asked, options_.group.form_timeout + absl::Seconds(1));
    const absl::Time left_out = world_->now;
    Form();
    world_->now = left_out + penalty - absl::Milliseconds(1);
    world_->Join("b");
    EXPECT_FALSE(world_->Attached("b"));
    world_->now = left_out + penalty;
  }
  world_->Join("b");
  world_->Wait();
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
}

TEST_F(BarrierGroupTest, ServingForgivesAWorker) {
  Start(1);
  world_->Join("a");
  world_->Wait();
  while (world_->Attached("a")) world_->Wait();
  world_->Advance(absl::Seconds(1));
  world_->Serve({"a"});
  world_->Break("a");
  world_->Join("a");
  world_->Wait();
  while (world_->Attached("a")) world_->Wait();
  world_->Advance(absl::Seconds(1));
  world_->Join("a");
  EXPECT_TRUE(world_->Attached("a")) << "the first penalty again";
}

// --- newcomers that leave while an epoch is formed with them ---

TEST_F(BarrierGroupTest, TheMoreNewcomersHaveLeftTheLongerTheNextOnesWait) {
  Serve({"a", "b"});
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 4; ++i) {
    const std::string name = absl::StrCat("pid", i);
    world_->Join(name);
    waits.push_back(world_->Wait());
    EXPECT_FALSE(world_->group().serving()) << "an epoch is formed with it";
    world_->Kill(name);
    Form();
  }
  EXPECT_THAT(waits, ElementsAre(absl::Milliseconds(100), absl::Milliseconds(200), absl::Milliseconds(400),
                                 absl::Milliseconds(800)));
  // Minutes later it is forgotten.
  world_->Advance(absl::Minutes(6));
  world_->Join("c");
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(100));
}

TEST_F(BarrierGroupTest, NewcomersWaitHalfAMinuteAtMost) {
  Serve({"a", "b"});
  for (int i = 0; i < 14; ++i) {
    const std::string name = absl::StrCat("pid", i);
    world_->Join(name);
    world_->Wait();
    world_->Kill(name);
    Form();
  }
  Submit(1, 4);
  world_->Join("c");
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u) << "the others decode meanwhile";
  world_->Advance(absl::Seconds(29));
  EXPECT_TRUE(world_->group().serving());
  world_->Advance(absl::Seconds(1));
  EXPECT_FALSE(world_->group().serving());
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
}

TEST_F(BarrierGroupTest, OneThatLeavesAgainAndAgainIsRefusedForEverLongerTimes) {
  Serve({"a", "b"});
  const auto leave = [&] {
    world_->Join("c");
    if (!world_->Attached("c")) return false;
    world_->Wait();
    world_->Kill("c");
    Form();
    return true;
  };
  EXPECT_TRUE(leave());
  EXPECT_TRUE(leave()) << "once is bad luck";
  EXPECT_FALSE(leave());
  EXPECT_EQ(world_->closed.back().status.code(), absl::StatusCode::kUnavailable);
  world_->Advance(absl::Seconds(1));
  EXPECT_TRUE(leave());
  world_->Advance(absl::Seconds(1));
  EXPECT_FALSE(leave());
  world_->Advance(absl::Seconds(1));
  EXPECT_TRUE(leave());
}

TEST_F(BarrierGroupTest, ARankThatHasServedIsNoNewcomer) {
  Serve({"a", "b"});
  for (int i = 0; i < 4; ++i) {
    world_->Break("b");
    world_->Join("b");
    world_->Wait();
    Form();
    world_->Join("c");
    world_->Wait();
    // While an epoch is formed with a newcomer, but not the newcomer.
    world_->Break("b");
    Form();
    world_->Break("c");
    Form();
    world_->Join("b");
    EXPECT_EQ(world_->Wait(), absl::Milliseconds(100));
    Form();
  }
}

// --- workers that cannot be members ---

TEST_F(BarrierGroupTest, AnotherBarrierIsNoReasonToRefuseAWorkerButItIsNoMember) {
  Serve({"a", "b"});
  world_->Worker("c").barrier = "nccl";
  world_->Join("c");
  EXPECT_TRUE(world_->Attached("c"));
  world_->Advance(absl::Hours(1));
  world_->ReadAll();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  EXPECT_EQ(world_->group().epoch(), 1u);
}

TEST_F(BarrierGroupTest, AWorkerThatCannotStepAloneMayMeetOthers) {
  Start(1);
  world_->Worker("a").steps_alone = false;
  world_->Join("a");
  EXPECT_TRUE(world_->Attached("a"));
}

TEST_F(BarrierGroupTest, AWorkerThatFollowedALaterElectedRouterIsRefused) {
  GroupSetOptions options = Options(1);
  options.group.instance = (uint64_t{1} << 63) + 4;
  Start(options);
  world_->Worker("a").followed = (uint64_t{1} << 63) + 5;
  world_->Join("a");
  EXPECT_FALSE(world_->Attached("a"));
  EXPECT_EQ(world_->closed.back().status.code(), absl::StatusCode::kUnavailable);
  world_->Worker("a").followed = (uint64_t{1} << 63) + 3;
  world_->Join("a");
  EXPECT_TRUE(world_->Attached("a"));
}

TEST_F(BarrierGroupTest, AWorkerIdIsAttachedOnce) {
  Serve({"a"});
  world_->Do([&](GroupSet& set, Commands& out) {
    world_->checker().OnHello(77);
    set.OnHello(77, world_->Worker("a").Hello(), world_->now, out);
  });
  EXPECT_EQ(world_->closed.back().to, 77u);
  EXPECT_EQ(world_->closed.back().status, absl::AlreadyExistsError("worker_id a is attached already"));
  EXPECT_TRUE(world_->group().serving());
}

// Its connection is half open: it knows that it is lost, and the router does not.
TEST_F(BarrierGroupTest, TheSameProcessTakesItsPlaceOverAtOnce) {
  Start(2);
  world_->Worker("a").instance = 5;
  world_->Serve({"a", "b"});
  Submit(1, 8);
  world_->Run(3);
  const MemberId before = world_->Worker("a").member;
  world_->Worker("a").LeaveEpoch();
  world_->Join("a");
  EXPECT_EQ(ClosedWith("a", before).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(world_->Attached("a"));
  Form();
  EXPECT_THAT(world_->Ranks(), ::testing::UnorderedElementsAre("a", "b"));
  // The end of the old connection is noticed much later, and means nothing.
  world_->Do([&](GroupSet& set, Commands& out) { set.OnGone(before, world_->now, out); });
  EXPECT_TRUE(world_->group().serving());
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, NobodyElseTakesAPlaceOver) {
  Start(1);
  world_->Worker("a").instance = 5;
  world_->Serve({"a"});
  MemberId stranger = 77;
  const auto refused = [&](uint64_t instance, uint64_t stream) {
    world_->Do([&](GroupSet& set, Commands& out) {
      world_->checker().OnHello(++stranger);
      WorkerHello hello = world_->Worker("a").Hello();
      hello.worker_instance = instance;
      hello.stream = stream;
      set.OnHello(stranger, hello, world_->now, out);
    });
    return world_->closed.back().to == stranger && absl::IsAlreadyExists(world_->closed.back().status);
  };
  EXPECT_TRUE(refused(6, 2)) << "another process of that name";
  EXPECT_TRUE(refused(0, 2)) << "one that does not tell";
  EXPECT_TRUE(refused(5, 1)) << "the same connection";
  EXPECT_TRUE(refused(5, 0)) << "an older one, whose hello comes late";
  EXPECT_TRUE(world_->group().serving());
}

// It has answered, others have not: what it says of the epoch to come is not booked under its old rank.
TEST_F(BarrierGroupTest, AReportBetweenTheAnswerAndTheOpeningCountsNowhere) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->Run(2);
  world_->Join("c");
  const uint64_t old_epoch = world_->group().epoch();
  for (int i = 0; i < 100 && world_->group().epoch() == old_epoch; ++i) world_->Wait();
  ASSERT_FALSE(world_->group().serving());
  while (world_->Read("b")) {
  }
  const MemberId b = world_->Worker("b").member;
  const int64_t tokens = world_->group().steps().totals().generated_tokens;
  for (const uint64_t epoch : {old_epoch, world_->group().epoch()}) {
    StepReport report;
    report.epoch = epoch;
    report.step = epoch == old_epoch ? 3 : 1;
    report.tokens = {{1, 1}};
    report.token_ids = {42};
    world_->Do([&](GroupSet& set, Commands& out) { set.OnReport(b, report, world_->now, out); }, b);
  }
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, tokens);
  EXPECT_TRUE(world_->Attached("b")) << "no more than out of date";
  Form();
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

// --- workers that misbehave ---

TEST_F(BarrierGroupTest, ASecondHelloIsNoPartOfTheProtocol) {
  Serve({"a", "b"});
  const MemberId b = world_->Worker("b").member;
  world_->Do(
      [&](GroupSet& set, Commands& out) { set.OnHello(b, world_->Worker("b").Hello(), world_->now, out); });
  EXPECT_EQ(ClosedWith("b", b), absl::InvalidArgumentError("unexpected message"));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
}

TEST_F(BarrierGroupTest, AStepThatDoesNotFollowEndsTheMembership) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  const MemberId b = world_->Worker("b").member;
  StepReport report = world_->Worker("b").Compute();
  report.step = 2;
  world_->Report("b", report);
  EXPECT_EQ(ClosedWith("b", b).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ClosedWith("b", b).message()), HasSubstr("step 2"));
  for (core::RequestId id = 1; id <= 8; ++id) EXPECT_EQ(world_->book().live.at(id).delivered, 0u);
}

TEST_F(BarrierGroupTest, AReportOfAnEpochThatItHasLeftIsDropped) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  const StepReport report = world_->Worker("b").Compute();
  world_->Report("b", report);
  world_->Join("c");
  world_->Wait();
  while (world_->Read("b")) continue;  // a plan, and the offer that it answers
  world_->Report("b", report);
  EXPECT_TRUE(world_->Attached("b"));
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 4) << "once";
  Form();
  world_->Report("b", report);
  EXPECT_TRUE(world_->Attached("b"));
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 4);
}

// Its tokens were counted as generated when it said that it is ready.
TEST_F(BarrierGroupTest, AReportThatComesBeforeTheAnswerStillCounts) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  StepReport late = world_->Worker("b").Compute();
  late.barrier_error = "ended on purpose";
  world_->Join("c");
  world_->Wait();
  ASSERT_FALSE(world_->group().serving());
  world_->Report("b", late);
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 4);
  Form();
  EXPECT_EQ(world_->book().lost + world_->book().doubled, 0);
  EXPECT_TRUE(world_->Attached("b"));
}

TEST_F(BarrierGroupTest, AReportOfAnEpochThatHasNotOpenedIsDropped) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->Join("c");
  world_->Wait();
  world_->Read("b");
  StepReport early;
  early.epoch = world_->group().epoch();
  early.step = 1;
  early.tokens = {{1, 1}, {2, 1}, {3, 1}, {4, 1}};
  early.token_ids = {1, 2, 3, 4};
  world_->Report("b", early);
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 0);
  EXPECT_TRUE(world_->Attached("b"));
}

TEST_F(BarrierGroupTest, WhatIsNotPlacedOnARankIsNotItsToReport) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  std::vector<core::RequestId> of_a;
  for (const auto& plan : world_->Worker("a").plans.front().assigned) of_a.push_back(plan.id);
  StepReport report = world_->Worker("b").Compute();
  const size_t own = report.tokens.size();
  for (const core::RequestId id : of_a) {
    report.tokens.push_back({id, 2});
    report.token_ids.insert(report.token_ids.end(), {7, 7});
    report.finished.push_back({id, FinishReason::kStop});
    report.preempted.push_back(id);
  }
  report.tokens.push_back({999, 1});
  report.token_ids.push_back(9);
  report.rejected.push_back({998, absl::InternalError("no such thing")});
  report.preempted.push_back(997);
  world_->Report("b", report);
  EXPECT_EQ(own, 4u);
  for (const core::RequestId id : of_a) EXPECT_EQ(world_->book().live.at(id).delivered, 0u);
  EXPECT_THAT(world_->book().completed, IsEmpty());
  EXPECT_THAT(world_->book().failed, IsEmpty());
}

TEST_F(BarrierGroupTest, ARankWhoseTokensDoNotAddUpIsCutOff) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const MemberId b = world_->Worker("b").member;
  const size_t held = world_->Worker("b").residents.size();
  // It has generated one more of one request than has come, and one less of another.
  ++world_->Worker("b").residents.begin()->second.made;
  --std::prev(world_->Worker("b").residents.end())->second.made;
  world_->Join("c");
  world_->Wait();
  world_->ReadAll();
  EXPECT_EQ(ClosedWith("b", b).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_->book().lost, 1);
  EXPECT_EQ(world_->book().doubled, 1);
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "c"));
  EXPECT_EQ(world_->book().placed_again, static_cast<int64_t>(held));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, AMemberCannotTakeAnothersRequestsForItsOwn) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const auto of_b = world_->Worker("b").residents;
  world_->Kill("b");
  world_->alter_ready = [&](SimWorker&, EpochReady& ready) {
    for (const auto& [id, resident] : of_b) ready.active.push_back({id, resident.kv(), resident.made});
  };
  Form();
  world_->alter_ready = nullptr;
  EXPECT_EQ(world_->lost.size(), 4u);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, AnAnswerToAnotherEpochIsNone) {
  Start(2);
  world_->Join("a");
  world_->Join("b");
  world_->Wait();
  EpochReady wrong;
  wrong.epoch = 7;
  world_->Ready("a", wrong);
  world_->Read("b");
  EXPECT_FALSE(world_->group().serving());
  world_->Read("a");
  EXPECT_TRUE(world_->group().serving());
}

// --- plans that come late ---

TEST_F(BarrierGroupTest, MissingReportsAreWaitedForForSoLongAndNoLonger) {
  Serve({"a", "b"});
  Submit(1, 8, 50);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const int64_t parts = world_->parts["a"];
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  EXPECT_EQ(world_->parts["a"], parts) << "b has not reported";
  EXPECT_EQ(world_->Wait(), options_.group.report_timeout);
  EXPECT_EQ(world_->parts["a"], parts + 1) << "planned without it";
  EXPECT_EQ(world_->parts["b"], parts + 1);
  world_->Report("b", world_->Worker("b").Compute());
  EXPECT_EQ(world_->parts["a"], parts + 1) << "that plan is out already";
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
  EXPECT_TRUE(world_->Attached("b"));
}

TEST_F(BarrierGroupTest, AReportThatComesInTimeNeedsNoForce) {
  Serve({"a", "b"});
  Submit(1, 8, 50);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  world_->decide = false;
  world_->Advance(options_.group.report_timeout);
  world_->Report("b", world_->Worker("b").Compute());
  const int64_t parts = world_->parts["a"];
  world_->Decide();
  EXPECT_EQ(world_->parts["a"], parts + 1);
  EXPECT_EQ(world_->last_part["a"].apply_step, 6) << "no further than the reports allow";
}

// --- a router that begins anew ---

TEST_F(BarrierGroupTest, RequestsOfAnEarlierRouterAreRecoveredAndOrphanedOnesDropped) {
  Serve({"a", "b"});
  Submit(1, 4);
  Submit(5, 8, 20, /*resumable=*/false);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const auto held = world_->Worker("a").residents.size() + world_->Worker("b").residents.size();
  ASSERT_EQ(held, 8u);
  world_->Start();
  EXPECT_FALSE(world_->groups().ExpectsAnnouncements());
  world_->Join("a");
  EXPECT_TRUE(world_->groups().ExpectsAnnouncements());
  world_->Join("b");
  Form();
  EXPECT_FALSE(world_->groups().ExpectsAnnouncements());
  EXPECT_EQ(world_->book().recovered, 4);
  EXPECT_EQ(world_->cluster().placed(), 4);
  EXPECT_EQ(world_->Worker("a").residents.size() + world_->Worker("b").residents.size(), 8u);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_THAT(world_->Worker("a").residents, IsEmpty());
  EXPECT_THAT(world_->Worker("b").residents, IsEmpty());
  EXPECT_EQ(world_->cluster().totals().drift_tokens, 0);
}

TEST_F(BarrierGroupTest, TheFirstEpochWaitsForTheOthersThatHoldRequestsButNotForEver) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  EXPECT_EQ(world_->Wait(), options_.group.restart_settle);
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  EXPECT_FALSE(world_->group().complete());
}

TEST_F(BarrierGroupTest, WithoutRequestsOfAnEarlierRouterThereIsNothingToWaitFor) {
  Start(2);
  world_->Join("a");
  EXPECT_EQ(world_->groups().next_deadline(), absl::InfiniteFuture());
}

// The clock of a machine may be set back: the next router may give out a number again.
TEST_F(BarrierGroupTest, AnOrphanedRequestIsNotTakenForOneOfTheSameNumber) {
  Serve({"a"});
  Submit(5, 5, 20, /*resumable=*/false);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  ASSERT_EQ(world_->Worker("a").residents.count(5), 1u);
  world_->Start();
  Submit(5, 5);
  world_->Join("a");
  Form();
  EXPECT_THAT(world_->last_part["a"].cancellations, ElementsAre(5));
  EXPECT_THAT(world_->last_part["a"].placements, ElementsAre(5));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 1u) << "with tokens of its own from the first one on";
}

// The epoch ends before its first plan: the next one sets them apart again.
TEST_F(BarrierGroupTest, OrphanedRequestsAreRememberedUntilTheWorkerHasDroppedThem) {
  Serve({"a"});
  Submit(5, 6, 20, /*resumable=*/false);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  Form();
  const int64_t parts = world_->parts["a"];
  Submit(5, 5);
  ASSERT_EQ(world_->parts["a"], parts + 1);
  EXPECT_THAT(world_->last_part["a"].cancellations, ElementsAre(5, 6));
  // It never reads that plan.
  world_->Join("b");
  world_->Wait();
  world_->Worker("a").inbox.pop_front();
  world_->decide = false;
  Form();
  EXPECT_EQ(world_->lost, std::vector<core::RequestId>{5});
  world_->decide = true;
  world_->Decide();
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 1u);
  EXPECT_THAT(world_->Worker("a").residents, IsEmpty());
}

TEST_F(BarrierGroupTest, WhatIsAnnouncedBeyondTheBudgetIsNotTaken) {
  GroupSetOptions options = Options(1);
  options.group.max_announced_bytes = 250;
  Start(options);
  world_->Serve({"a"});
  Submit(1, 3);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  Form();
  EXPECT_EQ(world_->book().recovered, 2);
  EXPECT_THAT(world_->Ranks(), ElementsAre("a")) << "and it is not sent away, to come again with the same";
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 2u);
  EXPECT_THAT(world_->Worker("a").residents, IsEmpty());
}

TEST_F(BarrierGroupTest, TheBudgetIsOfAllWorkersTogether) {
  GroupSetOptions options = Options(2);
  options.group.max_announced_bytes = 250;
  Start(options);
  world_->Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) {
    world_->Step("a");
    world_->Step("b");
  }
  world_->Start();
  world_->Join("a");
  world_->Join("b");
  Form();
  EXPECT_EQ(world_->book().recovered, 2) << "each of two would have been let have its two";
}

TEST_F(BarrierGroupTest, AnnouncementsThatNobodyAskedForAreNone) {
  Serve({"a"});
  Announcement announcement;
  announcement.epoch = world_->group().epoch();
  announcement.requests.emplace_back().id = 3;
  announcement.bytes = {10};
  const MemberId a = world_->Worker("a").member;
  world_->Do([&](GroupSet& set, Commands& out) { set.OnAnnouncement(a, announcement, world_->now, out); });
  world_->Join("b");
  world_->Wait();
  Form();
  EXPECT_EQ(world_->book().recovered, 0);
}

// --- workers leave ---

TEST_F(BarrierGroupTest, ADrainIsTakenBackWhileTheWorkerIsThere) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const auto undrain = [&](absl::string_view worker) {
    absl::Status status;
    world_->Do([&](GroupSet& set, Commands& out) { status = set.Undrain(worker, out); });
    return status.code();
  };
  EXPECT_EQ(undrain("nobody"), absl::StatusCode::kNotFound);
  EXPECT_EQ(undrain("b"), absl::StatusCode::kFailedPrecondition) << "it is not drained";
  // One that has requests: it would have left when they end.
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  EXPECT_TRUE(world_->group().Members()[0].draining);
  EXPECT_EQ(undrain("a"), absl::StatusCode::kOk);
  EXPECT_FALSE(world_->group().Members()[0].draining);
  Submit(11, 18);
  world_->Run();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  EXPECT_EQ(world_->book().completed.size(), 12u);
  // Who leaves of its own accord is not kept.
  const MemberId a = world_->Worker("a").member;
  Submit(21, 24);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Do([&](GroupSet& set, Commands& out) { set.OnLeave(a, "signal", world_->now, out); });
  EXPECT_EQ(undrain("a"), absl::StatusCode::kFailedPrecondition);
}

TEST_F(BarrierGroupTest, ADrainedWorkerEndsItsRequestsAndGetsNoOthers) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  EXPECT_EQ(world_->groups().Drain("nobody", world_->now, *std::make_unique<Commands>()).code(),
            absl::StatusCode::kNotFound);
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("b", world_->now, out).ok()); });
  const MemberId b = world_->Worker("b").member;
  EXPECT_TRUE(world_->group().Members()[1].draining);
  Submit(11, 18);
  world_->alter = [](SimWorker& worker, StepReport&) {
    if (worker.name != "b") return;
    for (const auto& [id, resident] : worker.residents) EXPECT_LE(id, 4u);
  };
  world_->Run();
  EXPECT_EQ(ClosedWith("b", b), absl::OkStatus());
  EXPECT_TRUE(world_->Worker("b").shut_down);
  EXPECT_EQ(world_->book().placed_again, 0);
  Form();
  world_->Run();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  EXPECT_EQ(world_->book().completed.size(), 12u);
}

TEST_F(BarrierGroupTest, ADrainedWorkerStaysWhilePlacementsAreOnTheirWay) {
  Serve({"a"});
  Submit(1, 2);
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  EXPECT_TRUE(world_->Attached("a"));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 2u);
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, AWorkerMayAskToLeave) {
  Serve({"a"});
  const MemberId a = world_->Worker("a").member;
  world_->Do([&](GroupSet& set, Commands& out) { set.OnLeave(a, "SIGTERM", world_->now, out); });
  EXPECT_THAT(world_->log, IsSupersetOf({HasSubstr("SIGTERM")}));
  EXPECT_EQ(ClosedWith("a", a), absl::OkStatus()) << "it has nothing";
  EXPECT_TRUE(world_->group().empty());
}

TEST_F(BarrierGroupTest, BetweenEpochsNobodyIsReleased) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Join("c");
  world_->Wait();
  ASSERT_FALSE(world_->group().serving());
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("b", world_->now, out).ok()); });
  EXPECT_TRUE(world_->Attached("b")) << "it is not known what it holds";
  Form();
  world_->Run();
  EXPECT_FALSE(world_->Attached("b"));
  Form();
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, AWorkerThatHoldsRequestsOfAnEarlierRouterIsNotReleasedBeforeItHasServed) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  EXPECT_TRUE(world_->Attached("a"));
  world_->Join("b");
  Form();
  world_->Run();
  EXPECT_FALSE(world_->Attached("a"));
  EXPECT_EQ(world_->book().completed.size(), 4u);
}

TEST_F(BarrierGroupTest, ADrainedWorkerWhoseConnectionBreaksIsStillDrained) {
  const auto drains = [&] { return world_->group().Members().at(0).draining; };
  Start(2);
  const uint64_t own = options_.group.instance, earlier = 9;
  const auto join = [&](uint64_t followed) {
    world_->Worker("a").followed = followed;
    world_->Join("a");
  };
  const auto drain = [&] {
    // Not decided: it would be released at once.
    world_->decide = false;
    world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  };
  join(0);
  drain();
  world_->Break("a");
  join(own);
  EXPECT_TRUE(drains());
  world_->Break("a");
  join(0);
  EXPECT_FALSE(drains()) << "another process of that name";
  world_->Break("a");
  join(own);
  EXPECT_FALSE(drains());
  world_->Break("a");
  // Drained before this router's first plan: it still names the one before.
  join(earlier);
  drain();
  world_->Break("a");
  join(earlier);
  EXPECT_TRUE(drains());
}

// --- what workers refuse ---

TEST_F(BarrierGroupTest, WhatAWorkerHasNoRoomForIsPlacedAgain) {
  Serve({"a", "b"});
  for (const char* name : {"a", "b"})
    world_->Worker(name).refuses = {{1, absl::ResourceExhaustedError("no KV")},
                                    {2, absl::ResourceExhaustedError("")}};
  Submit(1, 4);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_THAT(world_->book().failed, IsEmpty());
}

TEST_F(BarrierGroupTest, AnyOtherRefusalIsTheRequestsEnd) {
  Serve({"a"});
  world_->Worker("a").refuses = {{2, absl::InvalidArgumentError("token 7 is not in the vocabulary")}};
  Submit(1, 3);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 2u);
  EXPECT_EQ(world_->book().failed.at(2), absl::InvalidArgumentError("token 7 is not in the vocabulary"));
}

TEST_F(BarrierGroupTest, PreemptedRequestsGoOnWhereTheyWere) {
  Serve({"a"});
  Submit(1, 4);
  world_->alter = [&](SimWorker& worker, StepReport& report) {
    if (report.step != 5) return;
    for (const core::RequestId id : {4, 3}) {
      // Taken out before the step: no token of it.
      worker.residents.erase(id);
      std::erase_if(report.tokens, [&](const RequestTokens& tokens) { return tokens.id == id; });
      report.token_ids.resize(report.tokens.size());
      report.preempted.push_back(id);
    }
  };
  world_->Run();
  EXPECT_EQ(world_->book().placed_again, 2);
  EXPECT_EQ(world_->book().completed.size(), 4u);
}

TEST_F(BarrierGroupTest, AStepMayGenerateSeveralTokensOfARequest) {
  Serve({"a"});
  Submit(1, 3);
  world_->ReadAll();
  StepReport report = world_->Worker("a").Compute();
  report.tokens = {{1, 2}, {2, 1}, {3, 0}, {999, 1}, {3, 3}};
  report.token_ids = {TokenOf(1, 0), TokenOf(1, 1), TokenOf(2, 0), 7,
                      TokenOf(3, 0), TokenOf(3, 1), TokenOf(3, 2)};
  world_->Report("a", report);
  EXPECT_EQ(world_->book().live.at(1).delivered, 2u);
  EXPECT_EQ(world_->book().live.at(2).delivered, 1u);
  EXPECT_EQ(world_->book().live.at(3).delivered, 3u);
}

TEST_F(BarrierGroupTest, ACancelledRequestIsDroppedAndItsTokensAreNobodys) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->book().Cancel(1);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 7u);
}

// --- what is told of steps ---

TEST_F(BarrierGroupTest, StepsAreHandedOutWithTheDecisionThatFollows) {
  Serve({"a", "b"});
  Submit(1, 12, 5);
  world_->Run();
  ASSERT_EQ(static_cast<int64_t>(world_->steps.size()), world_->group().steps().totals().steps);
  ASSERT_GT(world_->steps.size(), 3u);
  EXPECT_EQ(world_->steps[0]->group, 0);
  EXPECT_EQ(world_->steps[0]->epoch, 1u);
  EXPECT_EQ(world_->steps[0]->step, 1);
  EXPECT_EQ(world_->steps[0]->decide, absl::Microseconds(20));
  EXPECT_EQ(world_->steps[0]->active_requests, (std::vector<uint32_t>{4, 4}));
  EXPECT_EQ(world_->steps[0]->waiting_requests, 4);
  EXPECT_EQ(world_->steps.back()->waiting_requests, 0);
  EXPECT_GT(world_->group().steps().totals().saturated_steps, 0);
  EXPECT_GT(world_->group().steps().totals().decisions, 0);
}

TEST_F(BarrierGroupTest, TheShortestStepIsKnownWhenEnoughHaveBeenSeen) {
  Serve({"a", "b"});
  world_->alter = [](SimWorker&, StepReport& report) {
    report.group_max_local = report.step == 7 ? absl::Milliseconds(3) : absl::Milliseconds(10);
  };
  Submit(1, 8, 200);
  for (int i = 0; i < 63; ++i) world_->Step("a");
  EXPECT_EQ(world_->group().shortest_step(), std::nullopt);
  world_->Step("a");
  EXPECT_EQ(world_->group().shortest_step(), absl::Milliseconds(3));
  EXPECT_EQ(world_->groups().shortest_step(), absl::Milliseconds(3));
  world_->Join("c");
  world_->Wait();
  Form();
  EXPECT_EQ(world_->group().shortest_step(), std::nullopt) << "of another membership";
}

TEST_F(BarrierGroupTest, EnergyIsPassedOn) {
  Serve({"a"});
  StepReport report;
  report.epoch = 1;
  report.step = 1;
  report.energy = EnergyReading{"gpu", 1, 2, 3};
  Commands out;
  world_->groups().OnReport(world_->Worker("a").member, report, world_->now, out);
  ASSERT_FALSE(out.empty());
  const auto* energy = std::get_if<EnergyReported>(&out.front());
  ASSERT_NE(energy, nullptr);
  EXPECT_EQ(energy->member, world_->Worker("a").member);
  EXPECT_EQ(energy->reading.barrier_j, 2);
}

// --- workers of different speed ---

StepCostEstimate CostOf(double tl) {
  StepCostEstimate cost;
  cost.c = {0.005, 1e-6};
  cost.tl = {tl, tl * 1e-3};
  cost.steps = 1000;
  return cost;
}

class WorkerSpeedsTest : public BarrierGroupTest {
 protected:
  // b's tokens take so many times as long.
  void ServeWith(double factor, bool worker_speeds = true) {
    GroupSetOptions options = Options(2);
    options.group.worker_speeds = worker_speeds;
    Start(options);
    factor_ = factor;
    world_->alter = [this](SimWorker& worker, StepReport& report) {
      report.cost = CostOf(worker.name == "b" ? factor_ * 1e-3 : 1e-3);
    };
    world_->Serve({"a", "b"});
    Submit(1, 8, 100);
    for (int i = 0; i < 5; ++i) world_->Step("a");
  }
  double TimeOf(core::WorkerIndex rank) {
    return world_->cluster().group(0)->Account(rank).spec.time_per_token;
  }

  double factor_ = 1;
};

TEST_F(WorkerSpeedsTest, PlansReckonWithASlowWorker) {
  ServeWith(2);
  EXPECT_DOUBLE_EQ(TimeOf(0), 1);
  EXPECT_NEAR(TimeOf(1), 2, 0.01);
  EXPECT_NEAR(world_->group().Members()[1].telemetry.time.time_per_token, 2, 0.01);
  EXPECT_THAT(world_->log, IsSupersetOf({HasSubstr("worker b: a step counts as 2.00 x load + 0 tokens")}));
  EXPECT_GT(world_->group().Members()[1].telemetry.service_time, 1);
  EXPECT_EQ(world_->cluster().group(0)->Account(1).spec.service_time,
            world_->group().Members()[1].telemetry.service_time);
}

TEST_F(WorkerSpeedsTest, ItKeepsItsSpeedInTheNextEpoch) {
  ServeWith(2);
  world_->alter = nullptr;
  world_->Join("c");
  world_->Wait();
  Form();
  EXPECT_NEAR(TimeOf(1), 2, 0.01);
  EXPECT_GT(world_->cluster().group(0)->Account(1).spec.service_time, 1);
}

TEST_F(WorkerSpeedsTest, NoiseChangesNothing) {
  ServeWith(2);
  factor_ = 2.02;
  for (int i = 0; i < 5; ++i) world_->Step("a");
  EXPECT_NEAR(TimeOf(1), 2, 0.001);
}

TEST_F(WorkerSpeedsTest, NobodyIsSlowWhereSpeedsAreOff) {
  ServeWith(2, /*worker_speeds=*/false);
  EXPECT_EQ(TimeOf(1), 1);
  EXPECT_TRUE(world_->group().Members()[1].telemetry.cost.has_value()) << "for operators";
}

}  // namespace
}  // namespace bfio::router
