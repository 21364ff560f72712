// How a group with a barrier forms, and connections that are refused or replaced. Whatever workers do, what
// tests/property/group_model_test.cc states holds too.
#include <string>
#include <vector>

#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(GroupTest, TheFirstEpochWaitsForTheExpectedWorkers) {
  Begin(With(3));
  Join("a");
  Join("b");
  EXPECT_EQ(groups().next_deadline(), absl::InfiniteFuture());
  EXPECT_FALSE(group().complete());
  Join("c");
  Wait();
  for (const std::string name : {"a", "b", "c"}) {
    ASSERT_EQ(Worker(name).inbox.size(), 1u);
    const auto offer = std::get<EpochOffer>(Worker(name).inbox.front());
    EXPECT_EQ(offer.epoch, 1u);
    EXPECT_EQ(offer.world_size, 3u);
    EXPECT_EQ(offer.rank, static_cast<uint32_t>(name[0] - 'a'));
    EXPECT_EQ(offer.communicator_id, "at a");
    EXPECT_FALSE(offer.independent || offer.announce);
    EXPECT_EQ(offer.group, "0");
    EXPECT_EQ(offer.step_timeout, Options().step_timeout);
    EXPECT_EQ(offer.form_timeout, Options().form_timeout);
    EXPECT_EQ(offer.retain, Options().retain);
    EXPECT_EQ(offer.router_instance, Options().instance);
  }
  Ready("a", {.epoch = 7});  // of another epoch
  Read("b");
  Read("c");
  EXPECT_FALSE(group().serving()) << "a has not answered";
  Read("a");
  EXPECT_TRUE(group().serving());
  EXPECT_TRUE(group().complete());
  EXPECT_EQ(Capacity().kv_tokens, 3000);
  EXPECT_EQ(Capacity().max_sequence_tokens(), 1000);
  // Nothing is planned for an idle group, and every rank gets its part of a plan, empty ones too.
  EXPECT_EQ(parts["a"], 0);
  Submit(1, 1);
  for (const std::string name : {"a", "b", "c"}) EXPECT_EQ(parts[name], 1);
  RunAll();
  const int64_t before = parts["a"];
  RunAll();
  EXPECT_EQ(parts["a"], before);
}

TEST_F(GroupTest, NewWorkersAreAddedAfterASettlingTime) {
  BeginWith({"a", "b"}, 4);
  Join("c");
  EXPECT_TRUE(group().serving());
  EXPECT_TRUE(Step("a")) << "while it settles the others step";
  EXPECT_EQ(Wait(), 100 * kMs);
  EXPECT_FALSE(group().serving());
  Read("a");
  Join("d");
  ReadAll();
  EXPECT_THAT(Ranks(), ElementsAre("a", "b", "c")) << "the epoch that forms goes on without it";
  EXPECT_EQ(group().epoch(), 2u);
  EXPECT_EQ(Wait(), 100 * kMs);
  EXPECT_THAT(Formed(), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(RunAll(), 4u);
  EXPECT_EQ(PlacedAgain(), 0) << "no request was lost";
}

TEST_F(GroupTest, OneFailureToFormIsNotHeldAgainstAWorker) {
  Join("a");
  Join("b");
  Wait();
  Read("a");
  Read("b", "no memory");
  EXPECT_FALSE(group().serving());
  EXPECT_EQ(Wait(), 500 * kMs);
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
  // A later one is the first after a success.
  for (int i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("new", i);
    Join(name);
    Wait();
    Read("a", "no barrier");
    ReadAll();
    EXPECT_TRUE(Attached(name));
    Form();
  }
}

TEST_F(GroupTest, AWorkerThatNeverServedIsTheLikeliestCause) {
  BeginWith({"a", "b"});
  Join("c");
  Wait();
  for (int attempt = 0; attempt < 2; ++attempt) {
    Read("a", "no barrier");
    Read("b", "no barrier");
    Read("c");
    if (attempt == 0) Wait();
  }
  EXPECT_FALSE(Attached("c"));
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
}

// Not the newest worker, which is blamed without better information.
TEST_F(GroupTest, ARankThatDoesNotComeToTheFormingIsLeftOut) {
  for (const bool all : {false, true}) {
    SCOPED_TRACE(all);
    BeginWith({"a", "b"});
    Join("c");
    Wait();
    alter_ready = [&](SimWorker& worker, EpochReady& ready) {
      if (worker.name == "a")
        ready.missing_ranks = all ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{1};
    };
    for (const char* name : {"a", "b", "c"}) Read(name, "did not form");
    alter_ready = nullptr;
    Form();
    EXPECT_THAT(Ranks(), ElementsAre(all ? "b" : "a", "c"))
        << "a rank that reaches no other is cut off itself";
  }
}

TEST_F(GroupTest, AnUnresponsiveWorkerIsRefusedForIncreasingTimesUntilItHasServed) {
  BeginWith({"a"});
  const auto times_out = [&] {
    Join("b");
    ASSERT_TRUE(Attached("b"));
    Wait();
    Read("a");
    const absl::Time asked = now;
    EXPECT_TRUE(WaitWhile([&] { return Attached("b"); }));
    EXPECT_EQ(now - asked, Options().form_timeout + absl::Seconds(1));
  };
  const auto refused_for = [&](absl::Duration penalty) {
    const absl::Time left_out = now;
    Form();
    now = left_out + penalty - kMs;
    Join("b");
    EXPECT_FALSE(Attached("b"));
    now = left_out + penalty;
  };
  for (const int seconds : {1, 2, 4}) {
    times_out();
    refused_for(absl::Seconds(seconds));
  }
  Join("b");
  Wait();
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
  Break("b");
  Form();
  times_out();
  refused_for(absl::Seconds(1));
  Join("b");
  EXPECT_TRUE(Attached("b"));
}

// --- new workers that leave while an epoch is formed with them ---

TEST_F(GroupTest, TheMoreNewWorkersLeftTheLongerTheNextWait) {
  BeginWith({"a", "b"});
  const auto comes_and_goes = [&](const std::string& name) {
    Join(name);
    const absl::Time since = now;
    EXPECT_TRUE(WaitWhile([&] { return group().serving(); }));
    const absl::Duration waited = now - since;
    Kill(name);  // while an epoch is formed with it
    Form();
    return waited;
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(comes_and_goes(absl::StrCat("pid", i)), (100 << i) * kMs);
  // After some minutes the settling time is back to its minimum.
  Advance(absl::Minutes(6));
  for (int i = 0; i < 14; ++i) comes_and_goes(absl::StrCat("pod", i));
  Submit(1, 4);
  Join("c");
  EXPECT_EQ(RunAll(), 4u) << "the others decode meanwhile";
  Advance(absl::Seconds(29));
  EXPECT_TRUE(group().serving());
  Advance(absl::Seconds(1));
  EXPECT_FALSE(group().serving()) << "at most half a minute";
  EXPECT_THAT(Formed(), ElementsAre("a", "b", "c"));
  // Without an open epoch nothing waits longer.
  for (const char* name : {"a", "b", "c"}) Kill(name);
  EXPECT_TRUE(group().empty());
  EXPECT_FALSE(groups().serving());
  EXPECT_TRUE(group().complete()) << "it has served once";
  Join("a");
  EXPECT_EQ(Wait(), 100 * kMs);
  EXPECT_THAT(Formed(), ElementsAre("a")) << "once formed it does not wait for all";
}

TEST_F(GroupTest, AWorkerThatLeavesRepeatedlyIsRefusedForLonger) {
  BeginWith({"a", "b"});
  const auto leave = [&] {
    Join("c");
    if (!Attached("c")) return false;
    Wait();
    Kill("c");
    Form();
    return true;
  };
  EXPECT_TRUE(leave());
  EXPECT_TRUE(leave()) << "once is bad luck";
  EXPECT_FALSE(leave());
  EXPECT_THAT(Refusal(), HasSubstr("UNAVAILABLE"));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(leave());
  Advance(absl::Seconds(1));
  EXPECT_FALSE(leave());
  Advance(absl::Seconds(1));
  EXPECT_TRUE(leave());
}

TEST_F(GroupTest, ARankThatHasServedIsNotNew) {
  BeginWith({"a", "b"});
  for (int i = 0; i < 4; ++i) {
    Break("b");
    Join("b");
    Wait();
    Form();
    Join("c");
    Wait();
    // b, which has served, leaves while an epoch is formed with the new worker c.
    Break("b");
    Form();
    Break("c");
    Form();
    Join("b");
    EXPECT_EQ(Wait(), 100 * kMs);
    Form();
  }
}

// --- connections that are refused or replaced ---

TEST_F(GroupTest, AWorkerThatFollowedALaterElectedRouterIsRefused) {
  WorldOptions options = With(1);
  const uint64_t elected = uint64_t{1} << 63;
  options.groups.group.instance = elected + 4;
  Begin(options);
  Worker("a").steps_alone = false;  // which a barrier does not need
  Worker("a").followed = elected + 5;
  Join("a");
  EXPECT_FALSE(Attached("a"));
  EXPECT_THAT(Refusal(), HasSubstr("UNAVAILABLE"));
  Worker("a").followed = elected + 3;
  Join("a");
  EXPECT_TRUE(Attached("a"));
}

// The old connection is half open: the worker has closed it, and the router has not noticed.
TEST_F(GroupTest, TheSameProcessReplacesItsOldConnectionAtOnceAndNoOtherDoes) {
  Worker("a").instance = 5;
  Serve({"a", "b"});
  Submit(1, 8);
  RunAll(3);
  const MemberId before = MemberOf("a");
  auto refused = [&, newcomer = MemberId{77}](uint64_t instance, uint64_t stream) mutable {
    WorkerHello hello = Worker("a").Hello();
    hello.worker_instance = instance;
    hello.stream = stream;
    HelloFrom(++newcomer, hello);
    return ClosedWith(newcomer) == absl::AlreadyExistsError("worker_id a is attached already");
  };
  EXPECT_TRUE(refused(6, 2)) << "another process of that name";
  EXPECT_TRUE(refused(0, 2)) << "one that does not tell";
  EXPECT_TRUE(refused(5, 1)) << "the same connection";
  EXPECT_TRUE(refused(5, 0)) << "an older one, whose hello comes late";
  EXPECT_TRUE(group().serving());
  Worker("a").LeaveEpoch();
  Join("a");
  EXPECT_EQ(ClosedWith(before).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Attached("a"));
  EXPECT_THAT(Formed(), ::testing::UnorderedElementsAre("a", "b"));
  // The end of the old connection, noticed later, has no effect.
  Do([&](GroupSet& set, Commands& out) { set.OnGone(before, now, out); });
  EXPECT_TRUE(group().serving());
  EXPECT_EQ(RunAll(), 8u);
}

}  // namespace
}  // namespace bfio::router
