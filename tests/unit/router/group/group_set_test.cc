// Several groups in one router: which worker joins which group, and that groups do not depend on each other.
#include "router/group/group_set.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/group/group_set_fixture.h"

namespace bfio::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(GroupSetTest, TheRoutersOwnGroupsExistFromTheStart) {
  ASSERT_EQ(world_.groups().groups().size(), 2u);
  EXPECT_EQ(world_.group(0).options().name, "0");
  EXPECT_EQ(world_.group(1).options().name, "1");
  EXPECT_EQ(world_.cluster().groups(), (std::vector<core::GroupIndex>{0, 1}));
  EXPECT_EQ(world_.groups().capacity().max_sequence_tokens, 0);
  EXPECT_EQ(world_.groups().Find(1), &world_.group(1));
  EXPECT_EQ(world_.groups().Find(2), nullptr);
}

TEST_F(GroupSetTest, WorkersThatNameNoGroupFillOneAfterAnother) {
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) world_.Join(name);
  std::vector<std::string> groups;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) groups.push_back(GroupOf(name));
  EXPECT_THAT(groups, ElementsAre("0", "0", "1", "1", "0", "1", "0"));
}

TEST_F(GroupSetTest, AReturningWorkerFillsTheGap) {
  for (const char* name : {"a", "b", "c", "d"}) world_.Join(name);
  world_.Break("c");
  world_.Join("e");
  EXPECT_EQ(GroupOf("e"), "1");
}

TEST_F(GroupSetTest, AWorkerMayNameItsGroup) {
  JoinGroup("a", "1");
  JoinGroup("b", "blue");
  JoinGroup("c", "blue");
  world_.Join("d");
  world_.Join("e");
  world_.Join("f");
  world_.Join("g");
  EXPECT_EQ(GroupOf("a"), "1");
  EXPECT_EQ(GroupOf("b"), "blue");
  EXPECT_EQ(GroupOf("c"), "blue");
  EXPECT_EQ(GroupOf("d"), "0");
  EXPECT_EQ(GroupOf("f"), "1");
  EXPECT_EQ(GroupOf("g"), "0") << "blue has fewest of all, but no worker is assigned to it";
  Form();
  EXPECT_EQ(world_.group(2).options().index, 2);
  EXPECT_THAT(world_.Ranks(2), ElementsAre("b", "c"));
  Submit(1, 30);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 30u);
  EXPECT_GT(world_.group(2).steps().totals().generated_tokens, 0);
}

TEST_F(GroupSetTest, AWorkerIdIsUniqueInTheRouter) {
  JoinGroup("a", "1");
  world_.Do([&](GroupSet& set, Commands& out) {
    world_.checker().OnHello(77);
    WorkerHello hello = world_.Worker("a").Hello();
    hello.group = "blue";
    set.OnHello(77, hello, world_.now, out);
  });
  ASSERT_EQ(world_.closed.size(), 1u);
  EXPECT_EQ(world_.closed[0].to, 77u);
  EXPECT_EQ(world_.closed[0].status, absl::AlreadyExistsError("worker_id a is attached already"));
  EXPECT_EQ(world_.groups().groups().size(), 2u) << "no group was formed for it";
}

TEST_F(GroupSetTest, AConnectionThatWasClosedCannotComeBack) {
  JoinGroup("a", "1");
  const MemberId a = world_.Worker("a").member;
  world_.Do([&](GroupSet& set, Commands& out) { set.Expel(a, absl::DataLossError("so"), world_.now, out); });
  Commands out;
  world_.groups().OnHello(a, world_.Worker("a").Hello(), world_.now, out);
  EXPECT_THAT(out, IsEmpty());
  EXPECT_FALSE(world_.Attached("a"));
  world_.Join("a");
  EXPECT_TRUE(world_.Attached("a")) << "by another one it can";
}

TEST_F(GroupSetTest, ReadinessWaitsForAllGroups) {
  world_.Serve({"a", "b"});
  EXPECT_TRUE(world_.groups().serving());
  EXPECT_FALSE(world_.groups().ready());
  EXPECT_FALSE(world_.groups().complete());
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 2000);
  world_.Worker("c").kv_tokens = 400;
  world_.Worker("d").kv_tokens = 600;
  world_.Join("c");
  EXPECT_FALSE(world_.groups().ready());
  world_.Join("d");
  Form();
  EXPECT_TRUE(world_.groups().ready());
  EXPECT_TRUE(world_.groups().complete());
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 3000);
  EXPECT_EQ(world_.groups().capacity().max_sequence_tokens, 400) << "what is let in fits everywhere";
  world_.Kill("d");
  EXPECT_FALSE(world_.groups().ready());
  EXPECT_TRUE(world_.groups().complete());
}

// A rank of one group is lost; the other group does not miss a step.
TEST_F(GroupSetTest, ALostRankDoesNotAffectOtherGroups) {
  world_.Serve({"a", "b", "c", "d"});
  Submit(1, 16, 100);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(world_.Step("a"));
    ASSERT_TRUE(world_.Step("c"));
    world_.ReadAll();
  }
  world_.Kill("d");
  for (int i = 0; i < 50; ++i) {
    world_.ReadAll();
    ASSERT_TRUE(world_.Step("a"));
    world_.Advance(absl::Milliseconds(10));
  }
  EXPECT_EQ(world_.group(0).epoch(), 1u);
  EXPECT_EQ(world_.group(1).epoch(), 2u);
  EXPECT_THAT(world_.Ranks(1), ElementsAre("c"));
  EXPECT_EQ(world_.lost.size(), 4u);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 16u);
}

TEST_F(GroupSetTest, RequestsOfAGroupWithoutMembersMoveToOthers) {
  world_.Serve({"a", "b", "c", "d"});
  Submit(1, 16, 100);
  for (int i = 0; i < 5; ++i) {
    world_.Step("a");
    world_.Step("c");
  }
  const absl::Time since = world_.now;
  world_.Kill("c");
  world_.Kill("d");
  EXPECT_TRUE(world_.group(1).empty());
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 4000);
  while (world_.lost.empty()) {
    world_.ReadAll();
    world_.Step("a");
    world_.Advance(absl::Milliseconds(100));
  }
  EXPECT_EQ(world_.now - since, Options(2).group.restart_settle);
  EXPECT_EQ(world_.lost.size(), 8u);
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 2000);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 16u);
}

TEST_F(GroupSetTest, AGroupOfEnginesThatHasGoneNoLongerBoundsRequests) {
  for (const char* name : {"a", "b", "c", "d"}) world_.Worker(name).passes = true;
  for (const char* name : {"a", "b"}) world_.Worker(name).kv_tokens = 100;
  world_.Serve({"a", "b", "c", "d"});
  Submit(1, 8, 50);
  EXPECT_EQ(world_.groups().capacity().max_sequence_tokens, 100);
  world_.Kill("a");
  world_.Kill("b");
  EXPECT_EQ(world_.lost.size(), 2u) << "at once: their requests ended with the connections";
  EXPECT_EQ(world_.groups().capacity().max_sequence_tokens, 100) << "they may return";
  world_.Advance(Options(2).group.restart_settle);
  EXPECT_EQ(world_.groups().capacity().max_sequence_tokens, 1000);
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 2000);
  EXPECT_EQ(world_.lost.size(), 2u);
  EXPECT_EQ(world_.group(0).give_up_at(), absl::InfiniteFuture());
  // No other group serves, so all waiting requests are still meant for engines.
  world_.Kill("c");
  world_.Kill("d");
  world_.Advance(absl::Hours(1));
  EXPECT_TRUE(world_.groups().capacity().passes);
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 2000);
}

// Until then, requests that are held to its ranks wait for it.
TEST_F(GroupSetTest, AGroupReturnsUntilItIsGivenUp) {
  EXPECT_FALSE(world_.group(1).returns()) << "it has never served";
  world_.Serve({"a", "b", "c", "d"});
  world_.Kill("d");
  EXPECT_FALSE(world_.group(1).serving());
  EXPECT_TRUE(world_.group(1).returns());
  world_.Kill("c");
  EXPECT_TRUE(world_.group(1).returns());
  world_.Advance(Options(2).group.restart_settle);
  EXPECT_FALSE(world_.group(1).returns());
  EXPECT_TRUE(world_.group(0).returns());
  JoinGroup("c", "1");
  EXPECT_FALSE(world_.group(1).serving());
  EXPECT_TRUE(world_.group(1).returns()) << "it forms again";
}

TEST_F(GroupSetTest, RequestsStayWithoutAnotherServingGroup) {
  world_.Serve({"a", "b"});
  Submit(1, 8, 100);
  world_.Kill("a");
  world_.Kill("b");
  world_.Advance(absl::Hours(1));
  EXPECT_THAT(world_.lost, IsEmpty());
  EXPECT_EQ(world_.groups().next_deadline(), absl::InfiniteFuture());
  JoinGroup("c", "1");
  JoinGroup("d", "1");
  Form();
  EXPECT_THAT(world_.lost, IsEmpty());
  world_.Wait();
  EXPECT_EQ(world_.lost.size(), 8u) << "now there is";
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 8u);
}

TEST_F(GroupSetTest, AWorkerThatReturnsInTimeKeepsTheGroupsRequests) {
  world_.Serve({"a", "b", "c", "d"});
  Submit(1, 16, 100);
  world_.Kill("c");
  world_.Kill("d");
  world_.Advance(Options(2).group.restart_settle - absl::Milliseconds(1));
  JoinGroup("c", "1");
  world_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(world_.lost, IsEmpty());
  Form();
  EXPECT_EQ(world_.lost.size(), 8u) << "the new process holds nothing";
}

TEST_F(GroupSetTest, GroupsNamedByWorkersAreBounded) {
  const int32_t most = GroupSet::kMaxGroups;
  for (int i = 2; i < most; ++i) JoinGroup(absl::StrCat("w", i), absl::StrCat("g", i));
  EXPECT_EQ(world_.groups().groups().size(), static_cast<size_t>(most));
  JoinGroup("late", "another");
  EXPECT_EQ(GroupOf("late"), "");
  EXPECT_EQ(world_.closed.back().status.code(), absl::StatusCode::kResourceExhausted);
  world_.Break("w7");
  JoinGroup("late", "another");
  EXPECT_EQ(GroupOf("late"), "another") << "g7 has made way";
  EXPECT_EQ(world_.groups().groups().size(), static_cast<size_t>(most));
  EXPECT_EQ(world_.group(static_cast<size_t>(most) - 1).options().index, most)
      << "an index is never used twice";
  EXPECT_EQ(world_.cluster().group(7), nullptr);
  EXPECT_EQ(world_.groups().Find(7), nullptr);
  EXPECT_EQ(world_.groups().Find(most), &world_.group(static_cast<size_t>(most) - 1));
  EXPECT_EQ(GroupOf("w8"), "g8");
}

TEST_F(GroupSetTest, ARemovedGroupsRequestsReturnToThePool) {
  for (const char* name : {"a", "b"}) JoinGroup(name, "blue");
  Form();
  Submit(1, 4);
  world_.Kill("a");
  world_.Kill("b");
  for (int i = 3; i < GroupSet::kMaxGroups; ++i) JoinGroup(absl::StrCat("w", i), absl::StrCat("g", i));
  EXPECT_THAT(world_.lost, IsEmpty());
  JoinGroup("late", "another");
  EXPECT_EQ(world_.lost.size(), 4u);
  EXPECT_EQ(world_.cluster().waiting(), 4);
}

TEST_F(GroupSetTest, StepsOfARemovedGroupStillCount) {
  for (const char* name : {"a", "b"}) JoinGroup(name, "blue");
  Form();
  Submit(1, 4);
  for (int i = 0; i < 5; ++i) {
    world_.Step("a");
    world_.Step("b");
    world_.Decide();
    world_.ReadAll();
  }
  const int64_t steps = world_.group(2).steps().totals().steps;
  ASSERT_GT(steps, 0);
  world_.Kill("a");
  world_.Kill("b");
  for (int i = 3; i < GroupSet::kMaxGroups; ++i) JoinGroup(absl::StrCat("w", i), absl::StrCat("g", i));
  JoinGroup("late", "another");
  ASSERT_EQ(world_.cluster().group(2), nullptr);
  EXPECT_EQ(world_.groups().retired_steps().steps, steps);
  EXPECT_EQ(world_.groups().retired_distributions().local_s.count(), 2 * steps);
}

TEST_F(GroupSetTest, MembersOfARemovedGroupAreUnknown) {
  JoinGroup("a", "blue");
  const MemberId a = world_.Worker("a").member;
  world_.Do([&](GroupSet& set, Commands& out) { set.Expel(a, absl::DataLossError("so"), world_.now, out); });
  for (int i = 2; i < GroupSet::kMaxGroups; ++i) JoinGroup(absl::StrCat("w", i), absl::StrCat("g", i));
  Commands out;
  StepReport report;
  world_.groups().OnReport(a, report, world_.now, out);
  world_.groups().OnEpochReady(a, {}, world_.now, out);
  world_.groups().OnLeave(a, "why", world_.now, out);
  world_.groups().OnGone(a, world_.now, out);
  world_.groups().OnGone(12345, world_.now, out);
  EXPECT_THAT(out, IsEmpty());
}

TEST_F(GroupSetTest, AReconnectedDrainingWorkerStaysDrainingInItsGroup) {
  world_.Serve({"a", "b", "c", "d"});
  Submit(1, 16, 100);
  for (int i = 0; i < 3; ++i) {
    world_.Step("a");
    world_.Step("c");
    world_.ReadAll();
  }
  world_.Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("c", world_.now, out).ok()); });
  world_.Break("b");
  world_.Break("c");
  world_.decide = false;
  world_.Join("c");
  EXPECT_EQ(GroupOf("c"), "1") << "though group 0 has lost one, too";
  EXPECT_TRUE(world_.group(1).Members().back().draining);
}

TEST_F(GroupSetTest, TheShortestStepIsTheMinimumOverGroups) {
  world_.Serve({"a", "b", "c", "d"});
  world_.alter = [](SimWorker& worker, StepReport& report) {
    report.group_max_local = absl::Milliseconds(worker.name < "c" ? 9 : 4);
  };
  Submit(1, 16, 200);
  for (int i = 0; i < 64; ++i) {
    world_.Step("a");
    world_.ReadAll();
  }
  EXPECT_EQ(world_.groups().shortest_step(), absl::Milliseconds(9)) << "the other cannot judge yet";
  for (int i = 0; i < 64; ++i) {
    world_.Step("c");
    world_.ReadAll();
  }
  EXPECT_EQ(world_.groups().shortest_step(), absl::Milliseconds(4));
}

class OneGroupTest : public GroupSetTest {
 protected:
  OneGroupTest() : GroupSetTest(1) {}
};

TEST_F(OneGroupTest, MoreGroupsThanAreNeededForReadinessMayForm) {
  JoinGroup("a", "red");
  JoinGroup("b", "red");
  Form();
  EXPECT_TRUE(world_.groups().ready());
  EXPECT_TRUE(world_.groups().complete());
  JoinGroup("c", "blue");
  JoinGroup("d", "blue");
  Form();
  Submit(1, 16);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 16u);
}

TEST_F(OneGroupTest, RequestsOfAnEarlierRouterAreRecoveredInAnyGroup) {
  for (const char* name : {"a", "b"}) JoinGroup(name, "red");
  for (const char* name : {"c", "d"}) JoinGroup(name, "blue");
  Form();
  Submit(1, 16, 50);
  for (int i = 0; i < 5; ++i) {
    world_.Step("a");
    world_.Step("c");
    world_.ReadAll();
  }
  world_.Start();
  // In another order, so that the groups swap their indices.
  for (const char* name : {"d", "a", "c", "b"}) world_.Join(name);
  Form();
  EXPECT_EQ(world_.book().recovered, 16);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 16u);
  EXPECT_EQ(world_.book().placed_again, 0);
}

}  // namespace
}  // namespace bfio::router
