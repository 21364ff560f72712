// How a group with a barrier forms: the first epoch, failed attempts, new workers, and workers that cannot be
// members.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/group/barrier_group_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;

// --- forming and serving ---

TEST_F(BarrierGroupTest, TheFirstEpochWaitsForTheExpectedWorkers) {
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

TEST_F(BarrierGroupTest, TheSmallestRankBoundsTheSequenceLength) {
  Start(2);
  world_->Worker("a").kv_tokens = 500;
  world_->Worker("b").kv_tokens = 700;
  world_->Serve({"a", "b"});
  EXPECT_EQ(world_->group().capacity().kv_tokens, 1200);
  EXPECT_EQ(world_->group().capacity().max_sequence_tokens, 500);
}

TEST_F(BarrierGroupTest, NewWorkersAreAddedAfterASettlingTime) {
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
  EXPECT_EQ(world_->book().placed_again, 0) << "no request was lost";
}

TEST_F(BarrierGroupTest, WorkersThatJoinDuringFormingAreAddedAfterwards) {
  Start(3);
  // It holds requests of an earlier router, so the group forms without waiting for the others.
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

// --- failures to form ---

TEST_F(BarrierGroupTest, OneFailureToFormIsNotHeldAgainstAWorker) {
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

TEST_F(BarrierGroupTest, AWorkerThatNeverServedIsTheLikeliestCause) {
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

// Not the newest worker, which is blamed without better information.
TEST_F(BarrierGroupTest, ARankThatDoesNotComeToTheFormingIsLeftOut) {
  for (const bool all : {false, true}) {
    SCOPED_TRACE(all);
    Serve({"a", "b"});
    world_->Join("c");
    world_->Wait();
    world_->alter_ready = [&](SimWorker& worker, EpochReady& ready) {
      if (worker.name == "a")
        ready.missing_ranks = all ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{1};
    };
    for (const char* name : {"a", "b", "c"}) world_->Read(name, "did not form");
    world_->alter_ready = nullptr;
    Form();
    EXPECT_THAT(world_->Ranks(), ElementsAre(all ? "b" : "a", "c"))
        << "a rank that reaches no other is cut off itself";
  }
}

TEST_F(BarrierGroupTest, AFailureBeforeASuccessDoesNotCount) {
  Serve({"a", "b"});
  for (int i = 0; i < 2; ++i) {
    world_->Join(i == 0 ? "c" : "d");
    world_->Wait();
    world_->ReadAll();
    Form();
    // One failure each time, with a success in between.
    world_->Join(i == 0 ? "e" : "f");
    world_->Wait();
    for (auto& [name, worker] : world_->workers) world_->Read(name, name == "a" ? "no barrier" : "");
    EXPECT_TRUE(world_->Attached(i == 0 ? "e" : "f"));
    Form();
  }
}

TEST_F(BarrierGroupTest, AnUnresponsiveWorkerIsRefusedForIncreasingTimes) {
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

TEST_F(BarrierGroupTest, ServingResetsAWorkersPenalty) {
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

// --- new workers that leave while an epoch is formed with them ---

TEST_F(BarrierGroupTest, TheMoreNewWorkersLeftTheLongerTheNextWait) {
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
  // After some minutes the settling time is back to its minimum.
  world_->Advance(absl::Minutes(6));
  world_->Join("c");
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(100));
}

TEST_F(BarrierGroupTest, NothingWaitsLongerForNewWorkersWhileNoEpochIsOpen) {
  Serve({"a", "b"});
  for (const char* name : {"c", "d", "e"}) {
    world_->Join(name);
    world_->Wait();
    world_->Kill(name);
    Form();
  }
  world_->Kill("a");
  world_->Kill("b");
  world_->Join("a");
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(100));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
}

TEST_F(BarrierGroupTest, AJoinDoesNotAbortTheEpochThatForms) {
  Serve({"a", "b"});
  world_->Join("c");
  world_->Wait();
  world_->Read("a");
  world_->Join("d");
  world_->ReadAll();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(world_->group().epoch(), 2u);
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(100));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c", "d"));
}

TEST_F(BarrierGroupTest, NewWorkersWaitForAtMostHalfAMinute) {
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

TEST_F(BarrierGroupTest, AWorkerThatLeavesRepeatedlyIsRefusedForLonger) {
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

TEST_F(BarrierGroupTest, ARankThatHasServedIsNotNew) {
  Serve({"a", "b"});
  for (int i = 0; i < 4; ++i) {
    world_->Break("b");
    world_->Join("b");
    world_->Wait();
    Form();
    world_->Join("c");
    world_->Wait();
    // b, which has served, leaves while an epoch is formed with the new worker c.
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

TEST_F(BarrierGroupTest, AWorkerWithAnotherBarrierStaysOutsideTheGroup) {
  Serve({"a", "b"});
  world_->Worker("c").barrier = "nccl";
  world_->Join("c");
  EXPECT_TRUE(world_->Attached("c"));
  world_->Advance(absl::Hours(1));
  world_->ReadAll();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  EXPECT_EQ(world_->group().epoch(), 1u);
}

TEST_F(BarrierGroupTest, AWorkerThatCannotStepAloneMayJoinABarrier) {
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

// The old connection is half open: the worker has closed it, and the router has not noticed.
TEST_F(BarrierGroupTest, TheSameProcessReplacesItsOldConnectionAtOnce) {
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
  // The end of the old connection, noticed later, has no effect.
  world_->Do([&](GroupSet& set, Commands& out) { set.OnGone(before, world_->now, out); });
  EXPECT_TRUE(world_->group().serving());
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, OtherWorkersCannotReplaceAConnection) {
  Start(1);
  world_->Worker("a").instance = 5;
  world_->Serve({"a"});
  MemberId newcomer = 77;
  const auto refused = [&](uint64_t instance, uint64_t stream) {
    world_->Do([&](GroupSet& set, Commands& out) {
      world_->checker().OnHello(++newcomer);
      WorkerHello hello = world_->Worker("a").Hello();
      hello.worker_instance = instance;
      hello.stream = stream;
      set.OnHello(newcomer, hello, world_->now, out);
    });
    return world_->closed.back().to == newcomer && absl::IsAlreadyExists(world_->closed.back().status);
  };
  EXPECT_TRUE(refused(6, 2)) << "another process of that name";
  EXPECT_TRUE(refused(0, 2)) << "one that does not tell";
  EXPECT_TRUE(refused(5, 1)) << "the same connection";
  EXPECT_TRUE(refused(5, 0)) << "an older one, whose hello comes late";
  EXPECT_TRUE(world_->group().serving());
}

// The worker has answered the offer and others have not: its reports of either epoch must not be booked under
// its old rank.
TEST_F(BarrierGroupTest, AReportBetweenAnswerAndOpeningIsDropped) {
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

}  // namespace
}  // namespace bfio::router
