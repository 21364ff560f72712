// Several groups over one pool; small cases computed by hand.
#include "router/core/scheduler/cluster.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

RequestSpec Call(RequestId id, int32_t priority = 0) {
  return {.id = id, .prefill_tokens = 10, .max_new_tokens = 50, .priority = priority};
}

class ClusterTest : public ::testing::Test {
 protected:
  explicit ClusterTest(const char* policy = "fcfs") : cluster_({}, {policy, {}}) {}

  // Opens a group of `workers` workers with `slots` slots each.
  void Open(GroupIndex group, int workers, int32_t slots, GroupKind kind = GroupKind::kBarrier) {
    ASSERT_TRUE(cluster_.Apply(AddGroup{group, kind}).status.ok());
    Reopen(group, workers, slots);
  }
  std::vector<RequestId> Reopen(GroupIndex group, int workers, int32_t slots) {
    OpenEpoch epoch{group, std::vector<EpochMember>(static_cast<size_t>(workers))};
    for (EpochMember& member : epoch.members) member.spec = {slots, 1000, true};
    return cluster_.Apply(epoch).displaced;
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
  // Reports step `step` of a rank that has `running` requests of 10 tokens, all begun in step 1.
  void Step(GroupIndex group, WorkerIndex worker, int64_t step, int64_t applied, int64_t running) {
    StepReport report = {.step = step,
                         .applied_plan = applied,
                         .load_tokens = running * (9 + step),
                         .group_idle = running == 0};
    const absl::Status status = cluster_.Apply(Report{group, worker, report}).status;
    ASSERT_TRUE(status.ok()) << status;
  }

  Cluster cluster_;
};

TEST_F(ClusterTest, GroupsShareOnePoolAndNoRequestIsInTwo) {
  Open(0, 1, 2);
  Open(1, 2, 2, GroupKind::kIndependent);
  Wait(1, 5);
  EXPECT_THAT(Placed(0), ElementsAre(1, 2));
  EXPECT_THAT(Placed(1), ElementsAre(3, 4, 5));
  EXPECT_EQ(cluster_.waiting(), 0);
  EXPECT_EQ(cluster_.placed(), 5);
  EXPECT_EQ(cluster_.LocationOf(2), (Cluster::Location{0, 0}));
  EXPECT_EQ(cluster_.LocationOf(3)->group, 1);
  EXPECT_TRUE(absl::IsAlreadyExists(cluster_.Apply(Enqueue{Call(3)}).status)) << "it is in the other group";
  EXPECT_TRUE(absl::IsAlreadyExists(cluster_.Apply(Requeue{Call(1)}).status));
  EXPECT_EQ(cluster_.Apply(Cancel{4}).cancel, CancelOutcome::kDropped);
  EXPECT_THAT(cluster_.Apply(MakePlan{1}).plan->drops, SizeIs(1));
}

TEST_F(ClusterTest, IndicesOfGroupsAscendAndAreNeverUsedTwice) {
  Open(3, 1, 1);
  EXPECT_EQ(cluster_.Apply(AddGroup{2}).status.message(), "group 2 follows group 3; indices must ascend");
  EXPECT_TRUE(cluster_.Apply(RemoveGroup{3}).status.ok());
  EXPECT_FALSE(cluster_.Apply(AddGroup{3}).status.ok());
  EXPECT_EQ(cluster_.Apply(RemoveGroup{3}).status.message(), "there is no group 3");
  EXPECT_EQ(cluster_.group(3), nullptr);
  EXPECT_TRUE(cluster_.Apply(AddGroup{4}).status.ok());
  EXPECT_THAT(cluster_.groups(), ElementsAre(4));
}

TEST_F(ClusterTest, EmptyGroupsDecideByIndex) {
  Open(0, 1, 4);
  Open(1, 1, 8);
  Open(2, 1, 6);
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(0, 1, 2));
}

TEST_F(ClusterTest, TheGroupWithTheLargestFreeShareDecidesFirst) {
  Open(0, 1, 4);
  Wait(1, 2);
  ASSERT_THAT(Placed(0), SizeIs(2));  // 2 of 4 are free
  Open(1, 1, 8);
  Wait(3, 5);
  ASSERT_THAT(Placed(1), SizeIs(3));  // 5 of 8
  Open(2, 1, 6);
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(2, 1, 0));
  Wait(6, 11);
  ASSERT_THAT(Placed(2), SizeIs(3));  // 3 of 6, as much as group 0 has
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(1, 0, 2));
  cluster_.Apply(SetAcceptsNew{1, 0, false});
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(0, 2, 1)) << "a draining worker has nothing to offer";
  cluster_.Apply(CloseEpoch{0});
  EXPECT_THAT(cluster_.DecisionOrder(), ElementsAre(2, 1));
}

TEST_F(ClusterTest, ABurstIsSharedOutByFreeSlots) {
  Open(0, 1, 8);
  Open(1, 1, 4);
  Wait(1, 6);
  EXPECT_THAT(Placed(0), SizeIs(4)) << "two thirds of the free slots, two thirds of the requests";
  EXPECT_THAT(Placed(1), SizeIs(2)) << "the others have been passed over: they are anybody's";
  EXPECT_EQ(cluster_.waiting(), 0);
}

TEST_F(ClusterTest, WhereSlotsAreShortAGroupFillsItsOwn) {
  Open(0, 1, 2);
  Open(1, 1, 2);
  Wait(1, 9);
  EXPECT_THAT(Placed(0), SizeIs(2));
  EXPECT_THAT(Placed(1), SizeIs(2));
  EXPECT_EQ(cluster_.waiting(), 5);
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
  EXPECT_THAT(Placed(0), IsEmpty());
  EXPECT_THAT(Placed(1), ElementsAre(1, 2));
  EXPECT_THAT(cluster_.Apply(RemoveGroup{0}).displaced, IsEmpty());
  EXPECT_THAT(cluster_.Apply(RemoveGroup{1}).displaced, ElementsAre(1, 2));
  EXPECT_EQ(cluster_.placed(), 0);
  EXPECT_EQ(cluster_.waiting(), 1);
  EXPECT_EQ(cluster_.totals().plans, 2) << "what groups have done counts when they are gone";
}

TEST_F(ClusterTest, AMemberDoesNotBringAlongWhatAnotherGroupHolds) {
  Open(0, 1, 2);
  Open(1, 1, 2);
  Wait(1, 1);
  ASSERT_THAT(Placed(0), ElementsAre(1));
  OpenEpoch epoch{1, std::vector<EpochMember>(1)};
  epoch.members[0].spec = {2, 1000, true};
  epoch.members[0].resident = {{1, 10}};
  epoch.members[0].recovered = {Call(1)};
  cluster_.Apply(epoch);
  EXPECT_EQ(cluster_.LocationOf(1)->group, 0);
  EXPECT_THAT(cluster_.Apply(MakePlan{1}).plan->drops, SizeIs(1)) << "its copy goes";
}

// A group of one rank and a group of two: the clock ticks once per three steps of ranks.
TEST_F(ClusterTest, TheClockTicksOnceInAMeanStepOfTheOpenGroups) {
  Open(0, 1, 1);
  Open(1, 2, 1, GroupKind::kIndependent);
  const PoolClock& clock = cluster_.pool().pool_clock();
  const int64_t start = clock.now();
  for (const GroupIndex group : {0, 1}) cluster_.Apply(MakePlan{group});
  Wait(1, 3);
  for (const GroupIndex group : {0, 1}) cluster_.Apply(MakePlan{group});
  Step(0, 0, 1, 1, 1);
  Step(1, 0, 1, 1, 1);
  EXPECT_EQ(clock.now(), start);
  Step(1, 0, 2, 1, 1);
  EXPECT_EQ(clock.now(), start + 1) << "whichever ranks made them";
  for (int64_t step = 3; step <= 5; ++step) Step(1, 0, step, 1, 1);
  EXPECT_EQ(clock.now(), start + 2);
  cluster_.Apply(CloseEpoch{1});
  for (int64_t step = 2; step <= 4; ++step) {
    cluster_.Apply(MakePlan{0});
    Step(0, 0, step, step, 1);
  }
  EXPECT_EQ(clock.now(), start + 5) << "one group: its steps";
}

// The first-come waits that one group's policy sees include the admissions of the other group.
TEST(ClusterYardstick, CountsTheAdmissionsOfAllGroups) {
  std::vector<int64_t> seen;
  class Watching : public Policy {
   public:
    explicit Watching(std::vector<int64_t>* seen) : seen_(seen) {}
    absl::string_view name() const override { return "watching"; }
    bool uses_first_come_waits() const override { return true; }
    void Decide(const Snapshot& snapshot, Decision& decision) override {
      seen_->push_back(snapshot.FirstCome(0).p99);
      if (snapshot.workers[0].free_slots > 0) decision.assignments.push_back({0, 0});
    }

   private:
    std::vector<int64_t>* seen_;
  };
  Cluster cluster({}, {}, [&](const PolicySetting&) { return std::make_unique<Watching>(&seen); });
  for (const GroupIndex group : {0, 1}) {
    cluster.Apply(AddGroup{group});
    OpenEpoch epoch{group, std::vector<EpochMember>(1)};
    epoch.members[0].spec = {1, 1000, true};
    cluster.Apply(epoch);
  }
  for (RequestId id = 1; id <= 2; ++id) cluster.Apply(Enqueue{Call(id)});
  // Group 0 places one request, then takes many steps while the other request waits.
  ASSERT_TRUE(cluster.Apply(MakePlan{0}).plan.has_value());
  for (int64_t step = 1; step <= 40; ++step) {
    StepReport report;
    report.step = report.applied_plan = step;
    report.load_tokens = 9 + step;
    ASSERT_TRUE(cluster.Apply(Report{0, 0, report}).status.ok());
    cluster.Apply(MakePlan{0});
  }
  EXPECT_GE(seen.back(), 15) << "the first did not wait, the next does";
  // Group 1 admits the second request after some twenty ticks. Group 0 then sees that no other request waits.
  ASSERT_EQ(cluster.Apply(MakePlan{1}).plan->placements.size(), 1u);
  cluster.Apply(Enqueue{Call(3)});
  StepReport report;
  report.step = report.applied_plan = 41;
  report.load_tokens = 50;
  ASSERT_TRUE(cluster.Apply(Report{0, 0, report}).status.ok());
  cluster.Apply(MakePlan{0});
  EXPECT_GE(seen.back(), 15);
}

TEST(ClusterPolicies, EveryGroupHasItsOwnAndUnknownNamesAreRefused) {
  int made = 0;
  Cluster cluster({}, {"fcfs", {}}, [&](const PolicySetting& setting) {
    ++made;
    return MakePolicy(setting.name, setting.options);
  });
  for (const GroupIndex group : {0, 1}) cluster.Apply(AddGroup{group});
  EXPECT_EQ(made, 2);
  EXPECT_NE(&cluster.group(0)->policy(), &cluster.group(1)->policy());
  EXPECT_FALSE(cluster.Apply(SetPolicy{{"nobody", {}}}).status.ok());
  EXPECT_EQ(cluster.group(1)->policy().name(), "fcfs");
  EXPECT_EQ(cluster.policy_setting().name, "fcfs");
  EXPECT_TRUE(cluster.Apply(SetPolicy{{"lpt", {}}}).status.ok());
  EXPECT_EQ(cluster.group(0)->policy().name(), "lpt");
  EXPECT_EQ(cluster.group(1)->policy().name(), "lpt");
  Cluster wrong({}, {"nobody", {}});
  EXPECT_TRUE(absl::IsInvalidArgument(wrong.Apply(AddGroup{0}).status));
}

TEST(ClusterObserver, GetsEveryEventBeforeAndAfterWithItsOutcome) {
  class Noting : public EventObserver {
   public:
    void Before(const SchedulerEvent& event) override { before.push_back(event.index()); }
    void After(const Cluster& cluster, const SchedulerEvent& event, const Outcome& outcome) override {
      after.push_back(event.index());
      asked += outcome.policy_called ? 1 : 0;
      waiting = cluster.waiting();
    }
    std::vector<size_t> before, after;
    int asked = 0;
    int64_t waiting = 0;
  };
  Noting noting;
  Cluster cluster({}, {"fcfs", {}}, {}, nullptr, &noting);
  cluster.Apply(AddGroup{0});
  cluster.Apply(Enqueue{Call(1)});
  cluster.Apply(MakePlan{0});
  EXPECT_THAT(noting.before,
              ElementsAre(SchedulerEvent(AddGroup{}).index(), SchedulerEvent(Enqueue{}).index(),
                          SchedulerEvent(MakePlan{}).index()));
  EXPECT_EQ(noting.after, noting.before);
  EXPECT_EQ(noting.asked, 0) << "the group is closed";
  EXPECT_EQ(noting.waiting, 1);
}

}  // namespace
}  // namespace bfio::core
