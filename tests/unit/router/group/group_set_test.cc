// Several groups in one router: which worker belongs to which, and that no group needs another.
#include "router/group/group_set.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/group_world.h"

namespace bfio::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GroupSetTest : public ::testing::Test {
 protected:
  GroupSetTest() : GroupSetTest(2) {}
  explicit GroupSetTest(int32_t groups) : GroupSetTest(Options(groups)) {}
  explicit GroupSetTest(const GroupSetOptions& options) : world_(options) {}
  void TearDown() override { EXPECT_THAT(world_.broken(), IsEmpty()); }

  static GroupSetOptions Options(int32_t groups) {
    GroupSetOptions options;
    options.group.workers = 2;
    options.groups = groups;
    return options;
  }
  void Submit(core::RequestId first, core::RequestId last, uint32_t max_new = 20) {
    for (core::RequestId id = first; id <= last; ++id)
      ASSERT_TRUE(world_.book().Submit(id, 10, max_new).ok());
    world_.Decide();
  }
  void JoinGroup(const std::string& name, const std::string& group) {
    world_.Worker(name).group = group;
    world_.Join(name);
  }
  // The group that the worker is in; empty: none.
  std::string GroupOf(const std::string& name) {
    for (const auto& group : world_.groups().groups()) {
      if (group->FindWorker(name)) return group->options().name;
    }
    return "";
  }
  // All groups that have members serve.
  void Form() {
    for (int i = 0; i < 100; ++i) {
      world_.ReadAll();
      if (world_.AllServe()) return;
      world_.Wait();
    }
    FAIL() << "the groups do not form";
  }

  GroupWorld world_;
};

TEST_F(GroupSetTest, TheRoutersOwnGroupsAreThereFromTheStart) {
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

TEST_F(GroupSetTest, AWorkerThatComesBackFillsTheGap) {
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
  EXPECT_EQ(GroupOf("g"), "0") << "blue has fewest of all, but nobody is assigned to it";
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

// One dies, the other does not miss a step.
TEST_F(GroupSetTest, AGroupDoesNotNoticeThatAnotherLosesARank) {
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

TEST_F(GroupSetTest, AGroupWithoutMembersGivesItsRequestsToOthers) {
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

TEST_F(GroupSetTest, WithoutAnotherServingGroupTheyStay) {
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

TEST_F(GroupSetTest, AWorkerThatComesBackInTimeKeepsTheGroupsRequestsThere) {
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

TEST_F(GroupSetTest, NamesFromOutsideAreBounded) {
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

TEST_F(GroupSetTest, AGroupThatMakesWayLosesItsRequests) {
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

TEST_F(GroupSetTest, StepsOfAGroupThatMakesWayStillCount) {
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

TEST_F(GroupSetTest, ADrainingWorkerGoesOnDrainingInItsGroup) {
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

TEST_F(GroupSetTest, TheShortestStepIsThatOfAnyGroup) {
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

TEST_F(OneGroupTest, RequestsOfAnEarlierRouterAreRecoveredInWhateverGroup) {
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
  // In another order, and each in the other group's place.
  for (const char* name : {"d", "a", "c", "b"}) world_.Join(name);
  Form();
  EXPECT_EQ(world_.book().recovered, 16);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 16u);
  EXPECT_EQ(world_.book().placed_again, 0);
}

// --- several models, several barriers ---

class ModelsTest : public GroupSetTest {
 protected:
  ModelsTest() : ModelsTest(2) {}
  explicit ModelsTest(int32_t workers) : GroupSetTest(WithWorkers(workers)) {}

  static GroupSetOptions WithWorkers(int32_t workers) {
    GroupSetOptions options = Options(1);
    options.group.workers = workers;
    return options;
  }
  void JoinModel(const std::string& name, const std::string& model, const std::string& barrier = "star") {
    world_.Worker(name).model = model;
    world_.Worker(name).barrier = barrier;
    world_.Join(name);
  }
  // Names of those that serve.
  std::vector<std::string> Serving() {
    std::vector<std::string> names;
    for (size_t i = 0; i < world_.groups().groups().size(); ++i) {
      for (const std::string& name : world_.Ranks(i)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // Time goes on, and what is sent is read.
  void Settle() {
    for (int i = 0; i < 200; ++i) {
      world_.ReadAll();
      world_.Advance(absl::Milliseconds(50));
    }
  }
  void Steps(int steps) {
    for (int i = 0; i < steps; ++i) {
      world_.ReadAll();
      for (auto& [name, worker] : world_.workers) {
        if (worker.epoch && worker.epoch->rank == 0) world_.Step(name);
      }
    }
  }
};

TEST(GroupKey, GroupsBesideAnotherHaveNamesOfTheirOwn) {
  const GroupKey llama{"star", "aa"}, qwen{"star", "bb"}, nccl{"nccl", "aa"};
  EXPECT_EQ(NameBeside("0", llama), NameBeside("0", llama));
  EXPECT_NE(NameBeside("0", llama), NameBeside("0", qwen));
  EXPECT_NE(NameBeside("0", llama), NameBeside("0", nccl));
  EXPECT_NE(SuffixOf({"a", "b"}), SuffixOf({"ab", ""}));
  EXPECT_EQ(BaseName(NameBeside("blue", llama), llama), "blue");
  EXPECT_EQ(BaseName(NameBeside("blue", llama), qwen), NameBeside("blue", llama));
  EXPECT_EQ(BaseName("blue", llama), "blue");
  const std::string longest(kMaxGroupNameBytes, 'x');
  EXPECT_EQ(NameBeside(longest, llama).size(), kMaxGroupNameBytes);
  EXPECT_EQ(Describe(GroupKey{"star", std::string(64, 'a')}), "model aaaaaaaaaaaa, barrier star");
  EXPECT_EQ(Describe(GroupKey{}), "model unknown");
}

TEST_F(ModelsTest, NeverServeInOneGroup) {
  JoinModel("llama1", "aa");
  JoinModel("qwen", "bb");
  JoinModel("llama2", "aa");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("llama1", "llama2"));
  EXPECT_EQ(GroupOf("qwen"), NameBeside("0", {"star", "bb"}));
  ASSERT_EQ(world_.notices.size(), 1u);
  EXPECT_EQ(world_.notices[0].to, world_.Worker("qwen").member);
  EXPECT_THAT(world_.notices[0].text, HasSubstr("since group 0 is of model aa, barrier star"));
  EXPECT_THAT(world_.log,
              Contains(HasSubstr("worker qwen: this worker (model bb, barrier star) is in group")));
  Submit(1, 8);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 8u);
  EXPECT_THAT(world_.closed, IsEmpty());
  // With a second one they are as good as any group.
  JoinModel("qwen2", "bb");
  Settle();
  EXPECT_EQ(Serving().size(), 4u);
}

TEST_F(ModelsTest, AWorkerWithoutADigestMatchesNoOther) {
  JoinModel("old", "");
  JoinModel("llama", "aa");
  JoinModel("older", "");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("old", "older"));
}

TEST_F(ModelsTest, AGroupThatAWorkerNamesHasOneBesideItToo) {
  for (const char* name : {"a1", "a2", "b1", "b2"}) world_.Worker(name).group = "blue";
  JoinModel("a1", "aa");
  JoinModel("b1", "bb");
  JoinModel("b2", "bb");
  JoinModel("a2", "aa");
  EXPECT_EQ(GroupOf("a2"), "blue");
  EXPECT_EQ(GroupOf("b2"), NameBeside("blue", {"star", "bb"}));
  Settle();
  EXPECT_EQ(Serving().size(), 4u);
  // Another process of that name names the group that it was started with.
  world_.Kill("b2");
  world_.Worker("b2").group = "blue";
  world_.Join("b2");
  EXPECT_EQ(GroupOf("b2"), NameBeside("blue", {"star", "bb"}));
  // After a restart the group that it was in last; whose name that is by now does not matter.
  world_.Start();
  world_.Worker("b1").group = NameBeside("blue", {"star", "bb"});
  JoinModel("b1", "bb");
  EXPECT_EQ(GroupOf("b1"), "blue");
  JoinModel("a1", "aa");
  EXPECT_EQ(GroupOf("a1"), NameBeside("blue", {"star", "aa"}));
}

TEST_F(ModelsTest, TheFirstWorkerDecidesNothing) {
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  Submit(1, 8, 200);
  Steps(5);
  world_.Start();
  // A wrong one, and one that is wrong otherwise, come before those who hold requests.
  JoinModel("wrong", "aa", "nccl");
  JoinModel("other", "bb");
  world_.Join("a");
  world_.Join("b");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("a", "b"));
  EXPECT_EQ(world_.book().recovered, 8);
  EXPECT_THAT(world_.closed, IsEmpty());
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 8u);
  EXPECT_EQ(world_.book().placed_again, 0);
}

TEST_F(ModelsTest, LiveRequestsOutweighNumbers) {
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  Submit(1, 8, 200);
  Steps(5);
  world_.Start();
  for (const char* name : {"w1", "w2", "w3"}) JoinModel(name, "bb");
  world_.Join("a");
  // The other one is gone for good.
  Settle();
  EXPECT_THAT(Serving(), Contains("a"));
  EXPECT_EQ(world_.book().recovered, 4);
}

TEST_F(ModelsTest, TheRoutersFlagsWin) {
  GroupSetOptions options = WithWorkers(1);
  options.models = {"aa11", "bb"};
  world_.SetOptions(options);
  world_.Start();
  JoinModel("b", "aa22", "nccl");
  EXPECT_EQ(world_.closed.back().status,
            absl::FailedPreconditionError("this router serves the models aa11,bb (--models), not aa22"));
  JoinModel("c", "", "nccl");
  EXPECT_EQ(world_.closed.size(), 2u);
  EXPECT_TRUE(world_.group(0).empty()) << "they have decided nothing";
  JoinModel("d", "aa11ff", "nccl+tp:7");
  JoinModel("e", "bb", "nccl");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("d", "e"));
}

TEST_F(ModelsTest, UncoupledRanksNeedNoMatchingBarriers) {
  GroupSetOptions options = WithWorkers(1);
  options.group.kind = core::GroupKind::kIndependent;
  world_.SetOptions(options);
  world_.Start();
  JoinModel("a", "aa", "star");
  JoinModel("b", "aa", "local");
  EXPECT_EQ(GroupOf("b"), "0");
  JoinModel("c", "bb", "star");
  EXPECT_NE(GroupOf("c"), "0");
}

// --- a rolling update ---

class UpdateTest : public ModelsTest {
 protected:
  UpdateTest() : ModelsTest(4) {}

  // The process ends and comes again with the new model.
  void Update(const std::string& name) {
    world_.Kill(name);
    Settle();
    JoinModel(name, "bb");
    Settle();
  }
};

TEST_F(UpdateTest, TheNewModelServesOnceItHasTheMajority) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  for (const std::string& name : names) JoinModel(name, "aa");
  Settle();
  EXPECT_EQ(Serving().size(), 4u);
  Update("a");
  EXPECT_THAT(Serving(), ElementsAre("b", "c", "d"));
  Update("b");
  EXPECT_THAT(Serving(), ElementsAre("c", "d")) << "it is no majority yet";
  Update("c");
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "c", "d")) << "both serve, each by itself";
  Update("d");
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(GroupOf("a"), GroupOf("d"));
  EXPECT_TRUE(world_.group(0).empty());
  // The next update begins in the group that is empty.
  world_.Kill("a");
  JoinModel("a", "cc");
  EXPECT_EQ(GroupOf("a"), "0");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("b", "c", "d")) << "that it served once is no reason to serve alone now";
}

TEST_F(UpdateTest, AModelInTheRoutersFlagsNeedsNoMajority) {
  GroupSetOptions options = WithWorkers(4);
  options.models = {"aa", "bb"};
  world_.SetOptions(options);
  world_.Start();
  for (const char* name : {"a", "b", "c"}) JoinModel(name, "aa");
  Settle();
  EXPECT_THAT(Serving(), IsEmpty()) << "at the start all are waited for";
  JoinModel("d", "aa");
  Settle();
  Update("a");
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "c", "d"));
  EXPECT_NE(GroupOf("a"), GroupOf("b"));
}

TEST_F(UpdateTest, WhatHasBegunEndsWithItsModelAndWhatHasNotGoesOn) {
  for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, "aa");
  Settle();
  Submit(1, 16, 400);
  Steps(3);
  for (const char* name : {"a", "b", "c"}) Update(name);
  EXPECT_EQ(Serving().size(), 4u);
  EXPECT_THAT(world_.book().failed, IsEmpty()) << "\"d\" goes on with those that began on the old model";
  Submit(17, 60, 400);
  Steps(5);
  world_.Kill("d");
  Settle();
  EXPECT_GT(world_.book().failed.size(), 0u);
  for (const auto& [id, status] : world_.book().failed) EXPECT_TRUE(absl::IsFailedPrecondition(status)) << id;
  for (const auto& [id, record] : world_.book().live)
    EXPECT_TRUE(record.delivered == 0 || record.model_name == "bb") << id;
  world_.Run(1000000);
  EXPECT_THAT(world_.book().live, IsEmpty());
  EXPECT_EQ(world_.book().completed.size() + world_.book().failed.size(), 60u);
  EXPECT_LE(world_.book().failed.size(), 20u);
}

TEST_F(UpdateTest, WhoseModelComesBackInTimeGoesOn) {
  for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, "aa");
  Settle();
  for (const char* name : {"e", "f", "g", "h"}) JoinModel(name, "bb");
  Settle();
  Submit(1, 16, 400);
  Steps(5);
  for (const char* name : {"a", "b", "c", "d"}) world_.Kill(name);
  world_.Advance(absl::Seconds(4));
  EXPECT_THAT(world_.book().failed, IsEmpty());
  JoinModel("a", "aa");
  Form();
  world_.Run(1000000);
  EXPECT_EQ(world_.book().completed.size(), 16u);
  EXPECT_GT(world_.book().placed_again, 0);
}

TEST_F(UpdateTest, WithoutAnyGroupThatServesRequestsWaitForTheirModel) {
  for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, "aa");
  Settle();
  Submit(1, 8, 400);
  Steps(5);
  for (const char* name : {"a", "b", "c", "d"}) world_.Kill(name);
  world_.Advance(absl::Hours(1));
  EXPECT_THAT(world_.book().failed, IsEmpty());
  JoinModel("e", "aa");
  Settle();
  world_.Run(1000000);
  EXPECT_EQ(world_.book().completed.size(), 8u);
}

}  // namespace
}  // namespace bfio::router
