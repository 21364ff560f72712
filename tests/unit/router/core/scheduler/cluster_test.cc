// Several groups over one pool; small cases computed by hand.
#include "router/core/scheduler/cluster.h"

#include <gmock/gmock.h>

#include <vector>

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

RequestSpec Call(RequestId id) {
  return {.id = id, .prefill_tokens = 10, .max_new_tokens = 50};
}

class ClusterTest : public ::testing::Test {
 protected:
  // Adds a group of `workers` workers with `slots` slots each.
  void Open(GroupIndex group, size_t workers, int32_t slots, GroupKind kind = GroupKind::kBarrier) {
    ASSERT_TRUE(cluster_.Apply(AddGroup{group, kind}).status.ok());
    Reopen(group, workers, slots);
  }
  std::vector<RequestId> Reopen(GroupIndex group, size_t workers, int32_t slots) {
    const EpochMember member = {.spec = {.slots = slots, .kv_tokens = 1000}};
    return cluster_.Apply(OpenEpoch{group, std::vector(workers, member)}).displaced;
  }
  void Wait(RequestId first, RequestId last) {
    for (RequestId id = first; id <= last; ++id) ASSERT_TRUE(cluster_.Apply(Enqueue{Call(id)}).status.ok());
  }
  std::vector<RequestId> Placed(GroupIndex group) {
    const std::optional<Plan> plan = cluster_.Apply(MakePlan{group}).plan;
    std::vector<RequestId> ids;
    for (size_t i = 0; plan && i < plan->placements.size(); ++i) ids.push_back(plan->placements[i].id);
    return ids;
  }
  // Reports step `step` of a rank that has a request of 10 tokens, begun in step 1.
  void Step(GroupIndex group, WorkerIndex worker, int64_t step, int64_t applied) {
    const StepReport report = {.step = step, .applied_plan = applied, .load_tokens = 9 + step};
    ASSERT_TRUE(cluster_.Apply(Report{group, worker, report}).status.ok());
  }

  int made_ = 0;
  Cluster cluster_{{}, {"fcfs", {}}, [&](const PolicySetting& setting) {
                     ++made_;
                     return MakePolicy(setting.name, setting.options);
                   }};
};

TEST_F(ClusterTest, IndicesOfGroupsAscendAndAreNeverUsedTwice) {
  Open(3, 1, 1);
  EXPECT_EQ(cluster_.Apply(AddGroup{2}).status.message(), "group 2 follows group 3; indices must ascend");
  EXPECT_TRUE(cluster_.Apply(RemoveGroup{3}).status.ok());
  EXPECT_FALSE(cluster_.Apply(AddGroup{3}).status.ok());
  EXPECT_EQ(cluster_.Apply(RemoveGroup{3}).status.message(), "there is no group 3");
  EXPECT_TRUE(cluster_.Apply(AddGroup{4}).status.ok());
  EXPECT_THAT(cluster_.groups(), ElementsAre(4));
}

// A worker takes sequences of its own length, in whichever group, under every policy.
TEST(WorkersOfUnequalLength, GetTheRequestsThatTheyTake) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    SCOPED_TRACE(policy.name);
    Cluster cluster({}, {std::string(policy.name), {}});
    const std::vector<std::vector<int64_t>> longest = {{20, 0, 60}, {1}};
    for (GroupIndex group = 0; group < 2; ++group) {
      ASSERT_TRUE(cluster.Apply(AddGroup{group, GroupKind::kBarrier}).status.ok());
      OpenEpoch open{group, {}, 0};
      for (const int64_t tokens : longest[static_cast<size_t>(group)])
        open.members.push_back({.spec = {.slots = 4, .kv_tokens = 1000, .max_sequence_tokens = tokens}});
      cluster.Apply(open);
    }
    // Of 60 tokens, of 61, of 20.
    for (RequestId id = 1; id <= 12; ++id) {
      const int64_t output = id % 3 == 0 ? 50 : id % 3 == 1 ? 51 : 10;
      ASSERT_TRUE(
          cluster.Apply(Enqueue{{.id = id, .prefill_tokens = 10, .max_new_tokens = output}}).status.ok());
    }
    int64_t placed = 0;
    for (const GroupIndex group : {1, 0}) {
      const std::optional<Plan> plan = cluster.Apply(MakePlan{group}).plan;
      if (plan) {
        for (const Placement& placement : plan->placements) {
          ++placed;
          EXPECT_EQ(group, 0);
          const int64_t tokens = placement.id % 3 == 0 ? 60 : placement.id % 3 == 1 ? 61 : 20;
          const int64_t most = longest[0][static_cast<size_t>(placement.worker)];
          EXPECT_TRUE(most == 0 || tokens <= most) << placement.id << " on " << placement.worker;
        }
      }
    }
    EXPECT_GT(placed, 0);
    EXPECT_EQ(cluster.placed(), placed);
  }
}

TEST_F(ClusterTest, TheGroupWithTheLargestFreeShareDecidesFirst) {
  Open(0, 1, 4);
  Wait(1, 2);
  ASSERT_THAT(Placed(0), SizeIs(2));  // 2 of 4 are free
  Open(1, 1, 8);
  Wait(3, 5);
  ASSERT_THAT(Placed(1), SizeIs(3));  // 5 of 8
  Open(2, 1, 6);
  Open(3, 1, 9);
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(2, 3, 1, 0)) << "empty groups by index";
  cluster_.Apply(RemoveGroup{3});
  Wait(6, 11);
  ASSERT_THAT(Placed(2), SizeIs(3));  // 3 of 6, as much as group 0 has
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(1, 0, 2));
  cluster_.Apply(SetAcceptsNew{1, 0, false});
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(0, 2, 1)) << "a draining worker has nothing to offer";
  cluster_.Apply(CloseEpoch{0});
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(2, 1));
}

TEST_F(ClusterTest, ABurstIsSharedOutByFreeSlotsUnlessSlotsAreShort) {
  Open(0, 1, 8);
  Open(1, 1, 4);
  Wait(1, 6);
  EXPECT_THAT(Placed(0), SizeIs(4)) << "two thirds of the free slots, two thirds of the requests";
  EXPECT_THAT(Placed(1), SizeIs(2)) << "the others have been passed over: they are anybody's";
  EXPECT_EQ(cluster_.waiting(), 0);
  Open(2, 1, 2);
  Wait(7, 15);
  EXPECT_THAT(Placed(2), SizeIs(2)) << "a group fills its own";
}

TEST_F(ClusterTest, WhatADeadGroupHeldGoesToTheOthersAheadOfItsClass) {
  Open(0, 1, 2);
  Wait(1, 2);
  ASSERT_THAT(Placed(0), ElementsAre(1, 2));
  Open(1, 1, 2);
  Wait(3, 3);
  EXPECT_THAT(Reopen(0, 0, 0), ElementsAre(1, 2)) << "all its workers are gone";
  EXPECT_FALSE(cluster_.group(0)->open());
  for (const RequestId id : {2, 1}) EXPECT_TRUE(cluster_.Apply(Requeue{Call(id)}).status.ok());
  EXPECT_THAT(Placed(1), ElementsAre(1, 2));
  cluster_.Apply(RemoveGroup{0});
  cluster_.Apply(RemoveGroup{1});
  EXPECT_EQ(cluster_.totals().plans, 2) << "what groups have done counts when they are gone";
}

TEST_F(ClusterTest, AMemberDoesNotBringAlongWhatAnotherGroupHolds) {
  Open(0, 1, 2);
  Open(1, 1, 2);
  Wait(1, 1);
  ASSERT_THAT(Placed(0), ElementsAre(1));
  cluster_.Apply(OpenEpoch{1, {{{.slots = 2, .kv_tokens = 1000}, {{1, 10}}, {Call(1)}}}});
  EXPECT_EQ(cluster_.LocationOf(1)->group, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(cluster_.Apply(Requeue{Call(1)}).status));
  EXPECT_THAT(cluster_.Apply(MakePlan{1}).plan->drops, SizeIs(1)) << "its copy goes";
}

// A group of one rank and a group of two: the clock ticks once per three steps of ranks.
TEST_F(ClusterTest, TheClockTicksOnceInAMeanStepOfTheOpenGroups) {
  Open(0, 1, 1);
  Open(1, 2, 1, GroupKind::kIndependent);
  const PoolClock& clock = cluster_.pool().pool_clock();
  const int64_t start = clock.now();
  Wait(1, 3);
  for (const GroupIndex group : {0, 1}) Placed(group);
  Step(0, 0, 1, 1);
  Step(1, 0, 1, 1);
  EXPECT_EQ(clock.now(), start);
  Step(1, 0, 2, 1);
  EXPECT_EQ(clock.now(), start + 1) << "whichever ranks made them";
  for (int64_t step = 3; step <= 5; ++step) Step(1, 0, step, 1);
  EXPECT_EQ(clock.now(), start + 2);
  cluster_.Apply(CloseEpoch{1});
  for (int64_t step = 2; step <= 4; ++step) {
    Placed(0);
    Step(0, 0, step, step);
  }
  EXPECT_EQ(clock.now(), start + 5) << "one group: its steps";
}

// A rank that has stopped gets one request until it works again; the others need not wait for that.
TEST_F(ClusterTest, AStoppedRankThatComputesPromptsForOthersTakesOne) {
  EXPECT_TRUE(cluster_.TakesPrefills());
  cluster_.Apply(AddGroup{0, GroupKind::kIndependent});
  cluster_.Apply(OpenEpoch{0, {{.spec = {.slots = 8, .kv_tokens = 1000}}}, 0, RequestSpec::kHandsOver});
  cluster_.Apply(AddGroup{1, GroupKind::kPrefill});
  cluster_.Apply(OpenEpoch{1, {{.spec = {.slots = 8, .kv_tokens = 1000}}}, 0, RequestSpec::kDecodes});
  const auto enqueue = [&](RequestId id) {
    cluster_.Apply(
        Enqueue{{.id = id, .prefill_tokens = 10, .max_new_tokens = 1, .needs = RequestSpec::kHandsOver}});
  };
  for (RequestId id = 1; id <= 8; ++id) enqueue(id);
  EXPECT_TRUE(cluster_.TakesPrefills()) << "busy ranks are waited for";
  for (RequestId id = 1; id <= 8; ++id) cluster_.Apply(Cancel{id});
  ASSERT_TRUE(cluster_.Apply(Report{1, 0, {.step = 1, .extra_slots = -7}}).status.ok());
  EXPECT_TRUE(cluster_.TakesPrefills());
  enqueue(9);
  EXPECT_FALSE(cluster_.TakesPrefills());
  EXPECT_THAT(Placed(1), ElementsAre(9));
  EXPECT_FALSE(cluster_.TakesPrefills());
  ASSERT_TRUE(cluster_.Apply(Report{1, 0, {.step = 2, .applied_plan = 1}}).status.ok());
  EXPECT_TRUE(cluster_.TakesPrefills());
}

// Prompts for others begin as far as those have slots and KV memory: free ones, less what waits for them or
// is under way, plus the slots of as many requests as may end in the time of two prompts.
TEST_F(ClusterTest, PromptsForOthersBeginAsFarAsThoseHaveRoom) {
  constexpr uint32_t kHandsOver = RequestSpec::kHandsOver, kDecodes = RequestSpec::kDecodes;
  const auto open = [&](GroupIndex group, int32_t slots, int64_t kv_tokens, GroupKind kind, uint32_t lacks) {
    cluster_.Apply(AddGroup{group, kind});
    cluster_.Apply(OpenEpoch{group, {{.spec = {.slots = slots, .kv_tokens = kv_tokens}}}, 0, lacks});
  };
  open(0, 6, 1000, GroupKind::kIndependent, kHandsOver);
  open(1, 8, 1000, GroupKind::kPrefill, kDecodes);
  EXPECT_EQ(cluster_.group(1)->policy().name(), "least_work");
  const auto prompt = [](RequestId id, int64_t tokens) {
    return RequestSpec{.id = id, .prefill_tokens = tokens, .max_new_tokens = 1, .needs = kHandsOver};
  };
  const auto computed = [](RequestId id, int64_t tokens) {
    return RequestSpec{.id = id,
                       .prefill_tokens = tokens,
                       .computed_tokens = tokens - 1,
                       .max_new_tokens = 50,
                       .needs = kDecodes};
  };
  // A report of the prompts that have been computed, and their return to the pool.
  int64_t prefill_step = 0;
  const auto hand_over = [&](std::vector<RequestId> ids) {
    StepReport report = {.step = ++prefill_step, .applied_plan = prefill_step};
    report.preempted = ids;
    ASSERT_TRUE(cluster_.Apply(Report{1, 0, report}).status.ok());
    for (const RequestId id : ids) ASSERT_TRUE(cluster_.Apply(Requeue{computed(id, 10)}).status.ok());
  };
  for (RequestId id = 1; id <= 10; ++id) cluster_.Apply(Enqueue{prompt(id, 10)});
  EXPECT_THAT(Placed(0), ElementsAre()) << "they wait for another group";
  EXPECT_THAT(Placed(1), ElementsAre(1, 2, 3, 4, 5, 6)) << "six slots are free there";
  EXPECT_THAT(Placed(1), ElementsAre());
  hand_over({1, 2, 3, 4, 5});
  EXPECT_THAT(Placed(1), ElementsAre()) << "the slots are promised to those that wait";
  EXPECT_THAT(Placed(0), UnorderedElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(Placed(1), ElementsAre()) << "and to the one under way";
  // One request ends while a prompt is under way: a prompt may begin for its slot, and two in advance. As 1
  // of 5 prompts has seen an end, 0.4 are expected in the time of two, and seldom more than 1.7.
  ASSERT_TRUE(cluster_.Apply(Report{0, 0, {.step = 1, .applied_plan = 1, .load_tokens = 50}}).status.ok());
  const std::vector<RequestId> ended = {1};
  StepReport end = {.step = 2, .applied_plan = 1, .load_tokens = 55};
  end.finished = ended;
  ASSERT_TRUE(cluster_.Apply(Report{0, 0, end}).status.ok());
  EXPECT_THAT(Placed(1), ElementsAre(7, 8, 9));
  // KV memory: a prompt of 970 tokens waits until it fits beside what is held and promised.
  hand_over({6, 7, 8, 9});
  EXPECT_THAT(Placed(0), SizeIs(2));
  for (const RequestId id : {8, 9, 10}) cluster_.Apply(Cancel{id});
  cluster_.Apply(Enqueue{prompt(11, 970)});
  EXPECT_THAT(Placed(1), ElementsAre());
  cluster_.Apply(Cancel{11});
  cluster_.Apply(Enqueue{prompt(12, 900)});
  EXPECT_THAT(Placed(1), ElementsAre(12));
}

// The KV of each is kept for a limited time.
TEST_F(ClusterTest, PromptsThatAreComputedWaitInTheOrderInWhichTheyCome) {
  Open(0, 1, 1);
  for (RequestId id = 1; id <= 3; ++id)
    cluster_.Apply(Requeue{{.id = id, .prefill_tokens = 10, .computed_tokens = 9, .max_new_tokens = 5}});
  EXPECT_THAT(Placed(0), ElementsAre(1));
}

TEST_F(ClusterTest, EveryGroupHasItsOwnPolicyAndUnknownNamesAreRefused) {
  for (const GroupIndex group : {0, 1}) cluster_.Apply(AddGroup{group});
  EXPECT_EQ(made_, 2);
  EXPECT_NE(&cluster_.group(0)->policy(), &cluster_.group(1)->policy());
  EXPECT_FALSE(cluster_.Apply(SetPolicy{{"nobody", {}}}).status.ok());
  EXPECT_EQ(cluster_.group(1)->policy().name(), "fcfs");
  EXPECT_EQ(cluster_.policy_setting().name, "fcfs");
  EXPECT_TRUE(cluster_.Apply(SetPolicy{{"lpt", {}}}).status.ok());
  for (const GroupIndex group : {0, 1}) EXPECT_EQ(cluster_.group(group)->policy().name(), "lpt");
  Cluster wrong({}, {"nobody", {}});
  EXPECT_TRUE(absl::IsInvalidArgument(wrong.Apply(AddGroup{0}).status));
}

}  // namespace
}  // namespace bfio::core
