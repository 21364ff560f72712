// Several models and barriers in one router, and rolling updates from one model to the next.
#include <string>

#include "router/group/group_set.h"
#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Pair;

class ModelsTest : public GroupSetTest {
 protected:
  ModelsTest() : GroupSetTest(With(2)) {}
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
  EXPECT_EQ(NameBeside(std::string(kMaxGroupNameBytes, 'x'), llama).size(), kMaxGroupNameBytes);
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
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].to, MemberOf("qwen"));
  EXPECT_THAT(notices[0].text, HasSubstr("because group 0 has model aa, barrier star"));
  EXPECT_THAT(log,
              Contains(HasSubstr("worker qwen: this worker (model bb, barrier star) is assigned to group")));
  Submit(1, 8);
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_THAT(closed, IsEmpty());
  // With a second worker of its model it forms a group that serves. One without a digest matches no other.
  JoinModel("qwen2", "bb");
  JoinModel("old", "");
  Settle();
  EXPECT_EQ(Serving().size(), 4u);
}

TEST_F(ModelsTest, ANamedGroupAlsoGetsAGroupBesideItForAnotherKey) {
  const std::string beside = NameBeside("blue", {"star", "bb"});
  for (const char* name : {"a1", "a2", "b1", "b2"}) Worker(name).group = "blue";
  JoinModel("a1", "aa");
  JoinModel("b1", "bb");
  JoinModel("b2", "bb");
  JoinModel("a2", "aa");
  EXPECT_EQ(GroupOf("a2"), "blue");
  EXPECT_EQ(GroupOf("b2"), beside);
  Settle();
  EXPECT_EQ(Serving().size(), 4u);
  // A new process of that worker names the group from its command line.
  Kill("b2");
  Join("b2", "blue");
  EXPECT_EQ(GroupOf("b2"), beside);
  // After a router restart a worker names its last group; which key that name stands for is decided anew.
  Start();
  Join("b1", beside);
  EXPECT_EQ(GroupOf("b1"), "blue");
  Join("a1");
  EXPECT_EQ(GroupOf("a1"), NameBeside("blue", {"star", "aa"}));
}

TEST_F(ModelsTest, LiveRequestsOutweighTheFirstWorkersAndTheirNumber) {
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  Submit(1, 8, 200);
  StepAll(5);
  Start();
  // Workers with other keys join before those that hold requests.
  JoinModel("wrong", "aa", "nccl");
  for (const char* name : {"w1", "w2", "w3"}) JoinModel(name, "bb");
  Join("a");
  Join("b");
  Settle();
  EXPECT_THAT(Serving(), IsSupersetOf({"a", "b"}));
  EXPECT_EQ(totals().recovered, 8);
  EXPECT_THAT(closed, IsEmpty());
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_EQ(PlacedAgain(), 0);
}

TEST_F(ModelsTest, TheRoutersFlagsTakePrecedence) {
  WorldOptions options = With(1);
  options.groups.models = {"aa11", "bb"};
  Begin(options);
  JoinModel("b", "aa22", "nccl");
  EXPECT_EQ(closed.back().status,
            absl::FailedPreconditionError("this router serves the models aa11,bb (--models), not aa22"));
  JoinModel("c", "", "nccl");
  EXPECT_EQ(closed.size(), 2u);
  EXPECT_TRUE(group(0).empty()) << "they have decided nothing";
  JoinModel("d", "aa11ff", "nccl");
  JoinModel("e", "bb", "nccl");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("d", "e"));
}

TEST_F(ModelsTest, UncoupledRanksNeedNoMatchingBarriers) {
  WorldOptions options = With(1);
  options.groups.group.kind = core::GroupKind::kIndependent;
  Begin(options);
  JoinModel("a", "aa", "star");
  JoinModel("b", "aa", "local");
  EXPECT_EQ(GroupOf("b"), "0");
  JoinModel("c", "bb", "star");
  EXPECT_NE(GroupOf("c"), "0");
}

TEST_F(ModelsTest, ARefusedWorkerDoesNotChangeTheModelOfAnEmptyGroup) {
  WorldOptions options = With(2);
  options.groups.group.instance = (uint64_t{1} << 63) + 4;
  Begin(options);
  JoinModel("a", "aa");
  JoinModel("b", "aa");
  Settle();
  Kill("a");
  Kill("b");
  // It has followed a router that was elected later.
  Worker("late").followed = (uint64_t{1} << 63) + 9;
  JoinModel("late", "bb");
  EXPECT_EQ(
      closed.back().status,
      absl::UnavailableError("this worker has already been connected to a router that was elected later"));
  EXPECT_THAT(log, Contains(HasSubstr("worker late is refused: this worker has already been connected to")));
  JoinModel("a", "aa");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("a")) << "the group has served, so it need not be complete";
}

TEST_F(ModelsTest, AGroupThatGetsAnotherModelHasNoCapacityUntilItServes) {
  Begin(With(2, 2));
  for (const char* name : {"a", "b"}) Worker(name).kv_tokens = 100;
  for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, "aa");
  Settle();
  EXPECT_EQ(Capacity().kv_tokens, 2200);
  Kill("a");
  Kill("b");
  JoinModel("e", "bb");
  EXPECT_EQ(GroupOf("e"), "0");
  Kill("e");
  Advance(absl::Hours(1));
  EXPECT_EQ(Capacity().kv_tokens, 2000);
  EXPECT_EQ(Capacity().max_sequence_tokens(), 1000);
}

// --- a rolling update ---

class UpdateTest : public GroupSetTest {
 protected:
  UpdateTest() : GroupSetTest(With(4)) { Serve4("aa"); }

  void Serve4(const std::string& model) {
    for (const char* name : {"a", "b", "c", "d"}) JoinModel(name, model);
    Settle();
    EXPECT_EQ(Serving().size(), 4u);
  }
  // The worker's process exits and starts again with the new model.
  void Update(const std::string& name) {
    Kill(name);
    Settle();
    JoinModel(name, "bb");
    Settle();
  }
};

TEST_F(UpdateTest, TheNewModelServesOnceItHasTheMajority) {
  Update("a");
  EXPECT_THAT(Serving(), ElementsAre("b", "c", "d"));
  Update("b");
  EXPECT_THAT(Serving(), ElementsAre("c", "d")) << "it is no majority yet";
  Update("c");
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "c", "d")) << "both serve, each by itself";
  Update("d");
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(GroupOf("a"), GroupOf("d"));
  EXPECT_TRUE(group(0).empty());
  // The next update begins in the group that is empty now.
  Kill("a");
  JoinModel("a", "cc");
  EXPECT_EQ(GroupOf("a"), "0");
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("b", "c", "d")) << "that it served once is no reason to serve alone now";
}

TEST_F(UpdateTest, AWorkerThatIsReleasedCountsNoLongerForTheMajority) {
  for (const char* name : {"a", "b"}) Update(name);
  ASSERT_TRUE(group(1).gathering());
  EXPECT_TRUE(Drain("c").ok());
  EXPECT_FALSE(Attached("c"));
  EXPECT_FALSE(group(1).gathering()) << "not only when another event comes";
  Settle();
  EXPECT_THAT(Serving(), ElementsAre("a", "b", "d"));
}

TEST_F(UpdateTest, AModelInTheRoutersFlagsNeedsNoMajority) {
  WorldOptions options = With(4);
  options.groups.models = {"aa", "bb"};
  Begin(options);
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
  Submit(1, 16, 400);
  StepAll(3);
  for (const char* name : {"a", "b", "c"}) Update(name);
  EXPECT_EQ(Serving().size(), 4u);
  EXPECT_EQ(Failed(), 0u) << "\"d\" goes on with those that began on the old model";
  Submit(17, 60, 400);
  StepAll(5);
  Kill("d");
  Settle();
  RunAll(1000000);
  EXPECT_EQ(Open(), 0u);
  EXPECT_GT(Failed(), 0u);
  EXPECT_LE(Failed(), 20u);
  for (const auto& [number, client] : clients) {
    EXPECT_TRUE(client->status->ok() || absl::IsFailedPrecondition(*client->status))
        << number << *client->status;
  }
}

TEST_F(UpdateTest, RequestsWaitForTheirModelAWhileAndForeverWithoutAServingGroup) {
  Submit(1, 8, 400);
  StepAll(5);
  for (const char* name : {"a", "b", "c", "d"}) Kill(name);
  Advance(absl::Hours(1));
  EXPECT_EQ(Failed(), 0u);
  for (const char* name : {"e", "f", "g", "h"}) JoinModel(name, "aa");
  Settle();
  StepAll(5);
  for (const char* name : {"i", "j", "k", "l"}) JoinModel(name, "bb");
  Settle();
  for (const char* name : {"e", "f", "g", "h"}) Kill(name);
  Advance(absl::Seconds(4));
  EXPECT_EQ(Failed(), 0u);
  JoinModel("a", "aa");
  Form();
  RunAll(1000000);
  EXPECT_EQ(Completed(), 8u);
  EXPECT_GT(PlacedAgain(), 0);
}

TEST(ModelBook, AModelExpiresWhenNoGroupHasServedItForAWhile) {
  ModelBook book;
  const auto at = [](int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); };
  const absl::Duration patience = absl::Seconds(5);
  const uint32_t aa = book.NumberOf("aa"), bb = book.NumberOf("bb");
  EXPECT_EQ(book.NumberOf("aa"), aa);
  EXPECT_THAT(book.known(), ElementsAre(Pair(aa, "aa"), Pair(bb, "bb")));
  EXPECT_EQ(book.NextExpiry(patience), absl::InfiniteFuture()) << "no group has served them";
  book.SetServed({aa, bb}, at(0));
  book.SetServed({bb}, at(1));
  book.SetServed({bb}, at(2));
  EXPECT_FALSE(book.Expect("bb", at(2)));
  EXPECT_TRUE(book.Expect("expected", at(2)));
  EXPECT_FALSE(book.Expect("expected", at(4))) << "counts from the first";
  EXPECT_EQ(book.NextExpiry(patience), at(6));
  book.Expire(patience, at(5));
  EXPECT_EQ(book.known().size(), 3u);
  book.Expire(patience, at(6));
  EXPECT_EQ(book.known().size(), 2u);
  book.Expire(patience, at(7));
  EXPECT_THAT(book.known(), ElementsAre(Pair(bb, "bb")));
  EXPECT_EQ(book.NextExpiry(patience), absl::InfiniteFuture());
  EXPECT_FALSE(book.Expect("expected", at(8))) << "it stays gone until it is served";
  book.SetServed({aa, bb, book.NumberOf("expected")}, at(9));
  EXPECT_EQ(book.known().size(), 3u);
}

TEST(ModelBook, ModelsNamedByWorkersAreBounded) {
  ModelBook book;
  const uint32_t served = book.NumberOf("served");
  book.SetServed({served}, absl::UnixEpoch());
  for (size_t i = 0; i < 3 * ModelBook::kMaxModels; ++i) {
    book.NumberOf(absl::StrCat(i));
    ASSERT_LE(book.known().size(), ModelBook::kMaxModels);
  }
  EXPECT_EQ(book.NumberOf("served"), served);
  EXPECT_GT(book.NumberOf("0"), 2 * ModelBook::kMaxModels) << "numbers are never used twice";
}

TEST(MemberHistory, TheNewestDrainingWorkersAreRemembered) {
  constexpr auto kMost = static_cast<int>(MemberHistory::kMaxWorkers);
  MemberHistory history;
  const auto pod = [](int i) { return absl::StrCat("pod-", i); };
  for (int i = 0; i < kMost; ++i) history.RememberDraining(pod(i), 7);
  // Remembered again, it is no longer the oldest, and takes no other's entry.
  history.RememberDraining(pod(0), 7);
  EXPECT_TRUE(history.WasDraining(pod(1)));
  history.RememberDraining("drained", 7);
  EXPECT_FALSE(history.WasDraining(pod(1)));
  EXPECT_TRUE(history.WasDraining(pod(0)));
  for (int i = 2; i < kMost; ++i) EXPECT_TRUE(history.WasDraining(pod(i))) << i;
  EXPECT_TRUE(history.TakeDraining("drained", 7, 8));
  EXPECT_FALSE(history.WasDraining("drained"));
}

}  // namespace
}  // namespace bfio::router
