// Ranks that step by themselves: a rank that stalls or fails interrupts the others only briefly.
#include "router/group/group_kinds.h"

#include <utility>
#include <vector>

#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class IndependentGroupTest : public GroupTest {
 protected:
  IndependentGroupTest() : GroupTest(Independent()) {}

  static WorldOptions Independent() {
    WorldOptions options = With(2);
    options.groups.group.kind = core::GroupKind::kIndependent;
    return options;
  }
  void StepBoth(int count) {
    for (int i = 0; i < count; ++i) {
      ReadAll();
      Steps(1, {"a", "b"});
    }
  }
  // a and b serve, and their last step took `step`; then c joins, and is ready as a is.
  void JoinAfterSteps(absl::Duration step) {
    Serve({"a", "b"});
    Submit(1, 4, 200);
    ReadAll();
    Advance(step);
    if (step > absl::ZeroDuration()) StepBoth(1);
    Join("c");
    Wait();
    EXPECT_FALSE(group().serving());
    Read("a");
  }
  absl::Duration NextDeadline() { return groups().next_deadline() - now; }
};

TEST_F(IndependentGroupTest, EveryRankIsAloneInItsEpoch) {
  Join("a");
  Join("b");
  Wait();
  const auto offer = std::get<EpochOffer>(Worker("b").inbox.front());
  EXPECT_EQ(offer.rank, 0u);
  EXPECT_EQ(offer.world_size, 1u);
  EXPECT_EQ(offer.communicator_id, "at b");
  EXPECT_TRUE(offer.independent);
  Form();
  Submit(1, 1, 5);
  EXPECT_EQ(parts["a"] + parts["b"], 1) << "only the chosen worker receives a plan";
  Submit(2, 8, 5);
  ReadAll();
  Step("b");
  ASSERT_EQ(steps.size(), 1u) << "every report is a step";
  EXPECT_EQ(steps[0]->rank, 1);
  EXPECT_EQ(group().steps().totals().saturated_steps, 1);
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_EQ(static_cast<int64_t>(steps.size()), group().steps().totals().steps);
  EXPECT_EQ(group().steps().totals().imbalance_tokens, 0);
}

TEST_F(IndependentGroupTest, AStalledRankDoesNotDelayOthers) {
  Serve({"a", "b"});
  Submit(1, 4, 200);
  StepBoth(1);
  const absl::Time since = now;
  while (Attached("b")) {
    now += absl::Milliseconds(100);
    ReadAll();
    ASSERT_TRUE(Step("a"));
    Timer();
  }
  EXPECT_EQ(now - since, Options().step_timeout);
  EXPECT_THAT(Refusal(), HasSubstr("no step report in time"));
}

TEST_F(IndependentGroupTest, AStalledRankDelaysAMembershipChangeBriefly) {
  JoinAfterSteps(absl::Milliseconds(100));
  Read("c");
  // b is stalled.
  EXPECT_EQ(Wait(), absl::Seconds(2));
  EXPECT_FALSE(Attached("b"));
  EXPECT_THAT(Formed(), ElementsAre("a", "c"));
  Read("b");
  Join("b");
  EXPECT_TRUE(Attached("b")) << "it is not refused when it comes back";
}

TEST_F(IndependentGroupTest, TheWaitScalesWithTheStepTime) {
  JoinAfterSteps(absl::Seconds(2));
  Read("c");
  EXPECT_EQ(NextDeadline(), absl::Seconds(8)) << "four times as long";
  Advance(absl::Seconds(7));
  ASSERT_TRUE(Attached("b"));
  Read("b");
  EXPECT_THAT(Ranks(), ElementsAre("a", "b", "c"));
}

TEST_F(IndependentGroupTest, AFirstStepMayTakeTheFormTimeout) {
  JoinAfterSteps(absl::ZeroDuration());
  Read("c");
  EXPECT_EQ(NextDeadline(), Options().form_timeout + absl::Seconds(1));
}

TEST_F(IndependentGroupTest, AWorkerThatCannotFormIsLeftOutAtOnce) {
  JoinAfterSteps(absl::Milliseconds(100));
  Read("b");
  Read("c", "no memory");
  EXPECT_FALSE(Attached("c"));
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
  Join("c");
  EXPECT_FALSE(Attached("c")) << "refused for a while";
}

// Such a worker waits for plans of numbered steps, which no router sends without a barrier.
TEST_F(IndependentGroupTest, AWorkerThatCannotStepAloneIsRefused) {
  Worker("a").steps_alone = false;
  Join("a");
  EXPECT_FALSE(Attached("a"));
  EXPECT_THAT(Refusal(), HasSubstr("--coupling=none"));
}

TEST_F(IndependentGroupTest, ARankCannotReportAnotherAsFailed) {
  Serve({"a", "b"});
  Submit(1, 2);
  ReadAll();
  FailBarrier("a", {1});
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
}

TEST_F(IndependentGroupTest, RequestsOfALostRankOrAnEarlierRouterGoOn) {
  Serve({"a", "b"});
  Submit(1, 8);
  StepBoth(3);
  Start();
  Join("a");
  Join("b");
  Wait();
  EXPECT_EQ(NextDeadline(), Options().form_timeout + absl::Seconds(1));
  Form();
  EXPECT_EQ(totals().recovered, 8);
  StepBoth(3);
  Kill("b");
  Form();
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_EQ(PlacedAgain(), 4);
}

// --- prefix caches ---

class SeenEvents final : public core::EventObserver {
 public:
  void Before(const core::SchedulerEvent& event) override {
    if (const auto* const opened = std::get_if<core::OpenEpoch>(&event)) {
      members.clear();
      for (const core::EpochMember& member : opened->members) members.push_back(member.spec);
    } else if (const auto* const told = std::get_if<core::Report>(&event)) {
      for (const core::CachedPrompt& one : told->report.cached) cached.emplace_back(one.id, one.tokens);
    }
  }

  // Members of the last epoch.
  std::vector<core::WorkerSpec> members;
  std::vector<std::pair<core::RequestId, int64_t>> cached;
};

TEST_F(IndependentGroupTest, TheSchedulerHearsOfPrefixCachesAndOfWhatWasFoundInThem) {
  SeenEvents seen;
  WorldOptions options = Independent();
  options.policy = "least_work";
  options.observer = &seen;
  Begin(options);
  Worker("a").prefix_cache = true;
  Serve({"a", "b"});
  ASSERT_THAT(seen.members, SizeIs(2));
  EXPECT_TRUE(seen.members[0].prefix_cache);
  EXPECT_FALSE(seen.members[1].prefix_cache);
  const uint64_t a = seen.members[0].member, b = seen.members[1].member;
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  Submit(1, 4, 5);
  // The report also names a request that does not exist.
  alter = [](const SimWorker& worker, StepReport& report) {
    if (worker.name != "a" || report.tokens.empty()) return;
    report.cached = {{report.tokens[0].id, 0}, {999, 7}};
    report.prefix_cache_queries = 20;
  };
  ReadAll();
  Step("a");
  ASSERT_THAT(seen.cached, SizeIs(2));
  EXPECT_EQ(seen.cached[0].second, 0);
  EXPECT_EQ(seen.cached[1], std::pair(core::RequestId{999}, int64_t{7}));
  alter = nullptr;
  EXPECT_EQ(RunAll(), 4u);
  // Its cache may have been lost together with the connection.
  Break("a");
  Join("a");
  EXPECT_TRUE(WaitWhile([&] { return Ranks().size() < 2 && Form(); }));
  ASSERT_THAT(seen.members, SizeIs(2));
  for (const core::WorkerSpec& member : seen.members) EXPECT_EQ(member.member == b, !member.prefix_cache);
  for (const core::WorkerSpec& member : seen.members) EXPECT_NE(member.member, a);
  Begin(Independent());  // without the observer
}

}  // namespace
}  // namespace bfio::router
