// Several groups in one router: which worker joins which group, and that groups do not depend on each other.
#include "router/group/group_set.h"

#include <string>
#include <vector>

#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(GroupSetTest, WorkersThatNameNoGroupFillOneAfterAnotherAndGapsFirst) {
  EXPECT_EQ(cluster().groups(), (std::vector<core::GroupIndex>{0, 1})) << "from the start";
  EXPECT_EQ(Capacity().max_sequence_tokens(), 0);
  std::vector<std::string> in;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    Join(name);
    in.push_back(GroupOf(name));
  }
  EXPECT_THAT(in, ElementsAre("0", "0", "1", "1", "0", "1", "0"));
  for (const char* name : {"c", "d", "f"}) Break(name);
  Join("h");
  EXPECT_EQ(GroupOf("h"), "1");
}

TEST_F(GroupSetTest, AWorkerMayNameItsGroup) {
  Join("a", "1");
  for (const char* name : {"b", "c"}) Join(name, "blue");
  for (const char* name : {"d", "e", "f", "g"}) Join(name);
  std::vector<std::string> in;
  for (const char* name : {"a", "b", "c", "d", "f", "g"}) in.push_back(GroupOf(name));
  EXPECT_THAT(in, ElementsAre("1", "blue", "blue", "0", "1", "0"))
      << "blue has fewest of all, but no worker is assigned to it";
  Form();
  EXPECT_EQ(group(2).options().index, 2);
  EXPECT_THAT(Ranks(2), ElementsAre("b", "c"));
  EXPECT_TRUE(groups().ready() && groups().complete());
  Submit(1, 30);
  EXPECT_EQ(RunAll(), 30u);
  EXPECT_GT(group(2).steps().totals().generated_tokens, 0);
}

TEST_F(GroupSetTest, AConnectionThatIsClosedOrASecondOneOfThatNameIsNoMember) {
  Join("a", "1");
  WorkerHello hello = Worker("a").Hello();
  hello.group = "blue";
  HelloFrom(77, hello);
  EXPECT_EQ(ClosedWith(77), absl::AlreadyExistsError("worker_id a is attached already"));
  EXPECT_EQ(groups().groups().size(), 2u) << "no group was formed for it";
  const MemberId a = MemberOf("a");
  Do([&](GroupSet& set, Commands& out) { set.Expel(a, absl::DataLossError("so"), now, out); });
  FillGroups();
  Commands out;
  groups().OnHello(a, Worker("a").Hello(), now, out);
  groups().OnReport(a, {}, now, out);
  groups().OnEpochReady(a, {}, now, out);
  groups().OnLeave(a, "why", now, out);
  groups().OnGone(a, now, out);
  groups().OnGone(12345, now, out);
  EXPECT_THAT(out, IsEmpty());
  EXPECT_FALSE(Attached("a"));
  Join("a");
  EXPECT_TRUE(Attached("a")) << "by another one it can";
}

TEST_F(GroupSetTest, ReadinessWaitsForAllGroupsAndRequestsFitOneOfThem) {
  Serve({"a", "b"});
  EXPECT_TRUE(groups().serving());
  EXPECT_FALSE(groups().ready() || groups().complete());
  EXPECT_EQ(Capacity().kv_tokens, 2000);
  Worker("c").kv_tokens = 400;
  Worker("d").kv_tokens = 600;
  Join("c");
  EXPECT_FALSE(groups().ready());
  Join("d");
  Form();
  EXPECT_TRUE(groups().ready() && groups().complete());
  EXPECT_EQ(Capacity().kv_tokens, 3000);
  EXPECT_EQ(Capacity().max_sequence_tokens(), 1000) << "that of the group that takes most";
  Kill("d");
  EXPECT_FALSE(groups().ready());
  EXPECT_TRUE(groups().complete());
}

// Until then, requests that are held to its ranks wait for it.
TEST_F(GroupSetTest, AGroupWithoutMembersIsGivenUpAfterAWhileAndItsRequestsMove) {
  const absl::Duration settle = Options().restart_settle;
  EXPECT_FALSE(group(1).returns()) << "it has never served";
  Serve({"a", "b", "c", "d"});
  Submit(1, 16, 100);
  StepAll(5);
  Kill("d");
  EXPECT_FALSE(group(1).serving());
  EXPECT_TRUE(group(1).returns());
  Kill("c");
  Advance(settle - absl::Milliseconds(1));
  // A worker that returns in time keeps the group's requests until it is known that it holds none.
  Join("c", "1");
  Advance(absl::Milliseconds(1));
  EXPECT_THAT(lost, IsEmpty());
  Form();
  EXPECT_EQ(lost.size(), 8u);
  StepAll(2);
  Kill("c");
  lost.clear();
  EXPECT_TRUE(group(1).empty() && group(1).returns());
  EXPECT_EQ(Capacity().kv_tokens, 3000);
  const absl::Time since = now;
  while (lost.empty()) {
    ReadAll();
    Step("a");
    Advance(absl::Milliseconds(100));
  }
  EXPECT_EQ(now - since, settle);
  EXPECT_EQ(lost.size(), 4u);
  EXPECT_EQ(Capacity().kv_tokens, 2000);
  EXPECT_FALSE(group(1).returns());
  EXPECT_TRUE(group(0).returns());
  EXPECT_EQ(RunAll(), 16u);
  Join("c", "1");
  EXPECT_FALSE(group(1).serving());
  EXPECT_TRUE(group(1).returns()) << "it forms again";
}

// One member of a group of its own decides for nobody else: neither for new requests nor for those that wait.
TEST_F(GroupSetTest, ASmallWorkerInAGroupOfItsOwnEndsNoRequest) {
  WorldOptions options = With(1);
  Begin(options);
  Worker("a").slots = 2;
  Serve({"a"});
  Submit(1, 6);
  Worker("small").kv_tokens = 1;
  Join("small", "another");
  Form();
  ASSERT_TRUE(group(1).serving());
  Submit(7, 8);
  EXPECT_EQ(Failed(), 0u);
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_THAT(Worker("small").residents, IsEmpty());
  // The same as a member of the group.
  Worker("less").kv_tokens = 1;
  Join("less", "0");
  Form();
  Submit(9, 12);
  EXPECT_EQ(RunAll(), 12u);
  EXPECT_EQ(Capacity().max_sequence_tokens(), 1000);
}

TEST_F(GroupSetTest, AGroupOfEnginesThatHasGoneNoLongerCounts) {
  for (const char* name : {"a", "b", "c", "d"}) {
    Worker(name).passes = true;
    Worker(name).kv_tokens = name[0] < 'c' ? 100 : 80;
  }
  Serve({"a", "b", "c", "d"});
  Submit(1, 8, 50);
  EXPECT_EQ(Capacity().max_sequence_tokens(), 100);
  Kill("a");
  Kill("b");
  EXPECT_EQ(lost.size(), 2u) << "at once: their requests ended with the connections";
  EXPECT_EQ(Capacity().max_sequence_tokens(), 100) << "they may return";
  Advance(Options().restart_settle);
  EXPECT_EQ(Capacity().max_sequence_tokens(), 80);
  EXPECT_EQ(Capacity().kv_tokens, 160);
  EXPECT_EQ(lost.size(), 2u);
  EXPECT_EQ(group(0).give_up_at(), absl::InfiniteFuture());
  // No other group serves, so all waiting requests are still meant for engines.
  Kill("c");
  Kill("d");
  Advance(absl::Hours(1));
  EXPECT_TRUE(Capacity().passes);
  EXPECT_EQ(Capacity().kv_tokens, 160);
}

TEST_F(GroupSetTest, RequestsStayWithoutAnotherServingGroup) {
  Serve({"a", "b"});
  Submit(1, 8, 100);
  Kill("a");
  Kill("b");
  Advance(absl::Hours(1));
  EXPECT_THAT(lost, IsEmpty());
  EXPECT_EQ(groups().next_deadline(), absl::InfiniteFuture());
  Join("c", "1");
  Join("d", "1");
  Form();
  EXPECT_THAT(lost, IsEmpty());
  Wait();
  EXPECT_EQ(lost.size(), 8u) << "now there is";
  EXPECT_EQ(RunAll(), 8u);
}

TEST_F(GroupSetTest, GroupsNamedByWorkersAreBounded) {
  const auto most = static_cast<size_t>(GroupSet::kMaxGroups);
  for (const char* name : {"a", "b"}) Join(name, "blue");
  Form();
  Submit(1, 4);
  for (int i = 0; i < 5; ++i) {
    StepAll(1);
    Decide();
  }
  const int64_t made = group(2).steps().totals().steps;
  ASSERT_GT(made, 0);
  FillGroups();
  EXPECT_EQ(groups().groups().size(), most);
  Join("late", "another");
  EXPECT_EQ(GroupOf("late"), "");
  EXPECT_THAT(Refusal(), HasSubstr("RESOURCE_EXHAUSTED"));
  Kill("a");
  Kill("b");
  EXPECT_THAT(lost, IsEmpty());
  Join("late", "another");
  EXPECT_EQ(GroupOf("late"), "another") << "blue has made way";
  EXPECT_EQ(lost.size(), 4u);
  EXPECT_EQ(cluster().waiting(), 4);
  EXPECT_EQ(groups().groups().size(), most);
  EXPECT_EQ(group(most - 1).options().index, GroupSet::kMaxGroups) << "an index is never used twice";
  EXPECT_EQ(cluster().group(2), nullptr);
  EXPECT_EQ(groups().Find(2), nullptr);
  EXPECT_EQ(groups().Find(GroupSet::kMaxGroups), &group(most - 1));
  EXPECT_EQ(GroupOf("w8"), "g8");
  EXPECT_EQ(groups().retired_steps().steps, made);
  EXPECT_EQ(static_cast<int64_t>(groups().retired_distributions().local_s.count()), 2 * made);
}

TEST_F(GroupSetTest, AReconnectedDrainingWorkerStaysDrainingInItsGroup) {
  Serve({"a", "b", "c", "d"});
  Submit(1, 16, 100);
  StepAll(3);
  EXPECT_TRUE(Drain("c").ok());
  Break("b");
  Break("c");
  decide = false;
  Join("c");
  EXPECT_EQ(GroupOf("c"), "1") << "though group 0 has lost one, too";
  EXPECT_TRUE(group(1).Members().back().draining);
}

TEST_F(GroupSetTest, TheShortestStepIsTheMinimumOverGroupsThatHaveTimedEnough) {
  Serve({"a", "b", "c", "d"});
  alter = [](SimWorker& worker, StepReport& report) {
    report.group_max_local = absl::Milliseconds(worker.name < "c" ? 12 : report.step == 7 ? 4 : 10);
  };
  Submit(1, 16, 200);
  const auto steps_of = [&](const std::string& name, int count) {
    for (int i = 0; i < count; ++i) {
      Step(name);
      ReadAll();
    }
  };
  steps_of("a", 64);
  EXPECT_EQ(groups().shortest_step(), absl::Milliseconds(12)) << "the other cannot judge yet";
  steps_of("c", 63);
  EXPECT_EQ(group(1).shortest_step(), std::nullopt);
  steps_of("c", 1);
  EXPECT_EQ(group(1).shortest_step(), absl::Milliseconds(4));
  EXPECT_EQ(groups().shortest_step(), absl::Milliseconds(4));
  Join("e", "1");
  Wait();
  Form();
  EXPECT_EQ(group(1).shortest_step(), std::nullopt) << "of another membership";
}

}  // namespace
}  // namespace bfio::router
