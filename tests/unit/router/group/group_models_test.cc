// Several models and barriers in one router, and rolling updates from one model to the next.
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
  // Names of all ranks that serve, sorted.
  std::vector<std::string> Serving() {
    std::vector<std::string> names;
    for (size_t i = 0; i < world_.groups().groups().size(); ++i) {
      for (const std::string& name : world_.Ranks(i)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // Advances the time by ten seconds; the workers read all messages.
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

TEST(GroupKey, GroupsOfOtherKeysGetDistinctNames) {
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
  EXPECT_THAT(world_.notices[0].text, HasSubstr("because group 0 has model aa, barrier star"));
  EXPECT_THAT(world_.log,
              Contains(HasSubstr("worker qwen: this worker (model bb, barrier star) is assigned to group")));
  Submit(1, 8);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 8u);
  EXPECT_THAT(world_.closed, IsEmpty());
  // With a second worker of its model it forms a group that serves.
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

TEST_F(ModelsTest, ANamedGroupAlsoGetsAGroupBesideItForAnotherKey) {
  for (const char* name : {"a1", "a2", "b1", "b2"}) world_.Worker(name).group = "blue";
  JoinModel("a1", "aa");
  JoinModel("b1", "bb");
  JoinModel("b2", "bb");
  JoinModel("a2", "aa");
  EXPECT_EQ(GroupOf("a2"), "blue");
  EXPECT_EQ(GroupOf("b2"), NameBeside("blue", {"star", "bb"}));
  Settle();
  EXPECT_EQ(Serving().size(), 4u);
  // A new process of that worker names the group from its command line.
  world_.Kill("b2");
  world_.Worker("b2").group = "blue";
  world_.Join("b2");
  EXPECT_EQ(GroupOf("b2"), NameBeside("blue", {"star", "bb"}));
  // After a router restart a worker names the group that it was in last; which key that name stands for is
  // decided anew.
  world_.Start();
  world_.Worker("b1").group = NameBeside("blue", {"star", "bb"});
  JoinModel("b1", "bb");
  EXPECT_EQ(GroupOf("b1"), "blue");
  JoinModel("a1", "aa");
  EXPECT_EQ(GroupOf("a1"), NameBeside("blue", {"star", "aa"}));
}

TEST_F(ModelsTest, TheFirstWorkerDoesNotDecideTheModel) {
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  Submit(1, 8, 200);
  Steps(5);
  world_.Start();
  // Two workers with other keys join before those that hold requests.
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

TEST_F(ModelsTest, LiveRequestsOutweighTheNumberOfWorkers) {
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  Submit(1, 8, 200);
  Steps(5);
  world_.Start();
  for (const char* name : {"w1", "w2", "w3"}) JoinModel(name, "bb");
  world_.Join("a");
  // Worker b does not return.
  Settle();
  EXPECT_THAT(Serving(), Contains("a"));
  EXPECT_EQ(world_.book().recovered, 4);
}

TEST_F(ModelsTest, TheRoutersFlagsTakePrecedence) {
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
  JoinModel("d", "aa11ff", "nccl");
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

TEST_F(ModelsTest, ARefusedWorkerDoesNotChangeTheModelOfAnEmptyGroup) {
  GroupSetOptions options = WithWorkers(2);
  options.group.instance = (uint64_t{1} << 63) + 4;
  world_.SetOptions(options);
  world_.Start();
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  world_.Kill("a");
  world_.Kill("b");
  // It has followed a router that was elected later.
  world_.Worker("late").followed = (uint64_t{1} << 63) + 9;
  JoinModel("late", "bb");
  EXPECT_EQ(
      world_.closed.back().status,
      absl::UnavailableError("this worker has already been connected to a router that was elected later"));
  EXPECT_THAT(world_.log,
              Contains(HasSubstr("worker late is refused: this worker has already been connected to")));
  JoinModel("a", "aa");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("a")) << "the group has served, so it need not be complete";
}

TEST_F(ModelsTest, AGroupThatGetsAnotherModelHasNoCapacityUntilItServes) {
  GroupSetOptions options = WithWorkers(2);
  options.groups = 2;
  world_.SetOptions(options);
  world_.Start();
  for (const char* name : {"a", "b"}) world_.Worker(name).kv_tokens = 100;
  for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, "aa");
  Settle();
  ASSERT_EQ(Serving().size(), 4u);
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 2200);
  world_.Kill("a");
  world_.Kill("b");
  JoinModel("e", "bb");
  EXPECT_EQ(GroupOf("e"), "0");
  world_.Kill("e");
  world_.Advance(absl::Hours(1));
  EXPECT_EQ(world_.groups().capacity().kv_tokens, 2000);
  EXPECT_EQ(world_.groups().capacity().max_sequence_tokens, 1000);
}

// --- a rolling update ---

class UpdateTest : public ModelsTest {
 protected:
  UpdateTest() : ModelsTest(4) {}

  // The worker's process exits and starts again with the new model.
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
  // The next update begins in the group that is empty now.
  world_.Kill("a");
  JoinModel("a", "cc");
  EXPECT_EQ(GroupOf("a"), "0");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("b", "c", "d")) << "that it served once is no reason to serve alone now";
}

TEST_F(UpdateTest, AWorkerThatIsReleasedCountsNoLongerForTheMajority) {
  for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, "aa");
  Settle();
  for (const char* name : {"a", "b"}) Update(name);
  ASSERT_TRUE(world_.group(1).gathering());
  world_.Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("c", world_.now, out).ok()); });
  EXPECT_FALSE(world_.Attached("c"));
  EXPECT_FALSE(world_.group(1).gathering()) << "not only when another event comes";
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "d"));
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

TEST_F(UpdateTest, BegunRequestsEndWithTheirModelOthersContinue) {
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

TEST_F(UpdateTest, RequestsContinueIfTheirModelReturnsInTime) {
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

TEST_F(UpdateTest, WithoutAServingGroupRequestsWaitForTheirModel) {
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
