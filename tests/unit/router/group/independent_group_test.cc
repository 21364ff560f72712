// Ranks that step by themselves: a rank that stalls or fails interrupts the others only briefly.
#include "router/group/independent_group.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/group_world.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class IndependentGroupTest : public ::testing::Test {
 protected:
  IndependentGroupTest() : world_(Options()) {}
  void TearDown() override { EXPECT_THAT(world_.broken(), IsEmpty()); }

  static GroupSetOptions Options() {
    GroupSetOptions options;
    options.group.workers = 2;
    options.group.kind = core::GroupKind::kIndependent;
    return options;
  }
  void Submit(core::RequestId first, core::RequestId last, uint32_t max_new = 20) {
    for (core::RequestId id = first; id <= last; ++id)
      ASSERT_TRUE(world_.book().Submit(id, 10, max_new).ok());
    world_.Decide();
  }
  void Form() {
    for (int i = 0; i < 100; ++i) {
      world_.ReadAll();
      if (world_.group().serving()) return;
      world_.Wait();
    }
    FAIL() << "the group does not form";
  }
  // a and b serve and have requests; their last step took `step`.
  void ServeWithSteps(absl::Duration step) {
    world_.Serve({"a", "b"});
    Submit(1, 4, 200);
    world_.ReadAll();
    world_.Advance(step);
    world_.Step("a");
    world_.Step("b");
  }

  GroupWorld world_;
};

TEST_F(IndependentGroupTest, EveryRankIsAloneInItsEpoch) {
  world_.Join("a");
  world_.Join("b");
  world_.Wait();
  const auto offer = std::get<EpochOffer>(world_.Worker("b").inbox.front());
  EXPECT_EQ(offer.rank, 0u);
  EXPECT_EQ(offer.world_size, 1u);
  EXPECT_EQ(offer.communicator_id, "at b");
  EXPECT_TRUE(offer.independent);
}

TEST_F(IndependentGroupTest, RequestsRunToTheirEnd) {
  world_.Serve({"a", "b"});
  Submit(1, 30);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 30u);
  EXPECT_EQ(world_.group().steps().totals().imbalance_tokens, 0);
}

TEST_F(IndependentGroupTest, OnlyTheChosenWorkerReceivesAPlan) {
  world_.Serve({"a", "b"});
  Submit(1, 1);
  EXPECT_EQ(world_.parts["a"] + world_.parts["b"], 1);
}

TEST_F(IndependentGroupTest, EveryReportIsAStep) {
  world_.Serve({"a", "b"});
  Submit(1, 8, 5);
  world_.ReadAll();
  world_.Step("b");
  ASSERT_EQ(world_.steps.size(), 1u);
  EXPECT_EQ(world_.steps[0]->rank, 1);
  EXPECT_EQ(world_.group().steps().totals().saturated_steps, 1);
  world_.Run();
  EXPECT_EQ(static_cast<int64_t>(world_.steps.size()), world_.group().steps().totals().steps);
}

TEST_F(IndependentGroupTest, AStalledRankDoesNotDelayOthers) {
  ServeWithSteps(absl::Milliseconds(100));
  const absl::Time since = world_.now;
  while (world_.Attached("b")) {
    world_.now += absl::Milliseconds(100);
    world_.ReadAll();
    ASSERT_TRUE(world_.Step("a"));
    world_.Timer();
  }
  EXPECT_EQ(world_.now - since, Options().group.step_timeout);
  EXPECT_THAT(std::string(world_.closed.back().status.message()), HasSubstr("no step report in time"));
}

TEST_F(IndependentGroupTest, AStalledRankDelaysAMembershipChangeBriefly) {
  ServeWithSteps(absl::Milliseconds(100));
  world_.Join("c");
  world_.Wait();
  EXPECT_FALSE(world_.group().serving());
  world_.Read("a");
  world_.Read("c");
  // b is stalled.
  EXPECT_EQ(world_.Wait(), absl::Seconds(2));
  EXPECT_FALSE(world_.Attached("b"));
  Form();
  EXPECT_THAT(world_.Ranks(), ElementsAre("a", "c"));
  world_.Read("b");
  world_.Join("b");
  EXPECT_TRUE(world_.Attached("b")) << "it is not refused when it comes back";
}

TEST_F(IndependentGroupTest, TheWaitScalesWithTheStepTime) {
  ServeWithSteps(absl::Seconds(2));
  world_.Join("c");
  world_.Wait();
  world_.Read("a");
  world_.Read("c");
  EXPECT_EQ(world_.groups().next_deadline() - world_.now, absl::Seconds(8)) << "four times as long";
  world_.Advance(absl::Seconds(7));
  ASSERT_TRUE(world_.Attached("b"));
  world_.Read("b");
  EXPECT_THAT(world_.Ranks(), ElementsAre("a", "b", "c"));
}

TEST_F(IndependentGroupTest, AFirstStepMayTakeTheFormTimeout) {
  world_.Serve({"a", "b"});
  Submit(1, 2);
  world_.Join("c");
  world_.Wait();
  world_.Read("a");
  world_.Read("c");
  EXPECT_EQ(world_.groups().next_deadline() - world_.now, Options().group.form_timeout + absl::Seconds(1));
}

TEST_F(IndependentGroupTest, AWorkerThatCannotFormIsLeftOutAtOnce) {
  ServeWithSteps(absl::Milliseconds(100));
  world_.Join("c");
  world_.Wait();
  world_.Read("a");
  world_.Read("b");
  world_.Read("c", "no memory");
  EXPECT_FALSE(world_.Attached("c"));
  Form();
  EXPECT_THAT(world_.Ranks(), ElementsAre("a", "b"));
  world_.Join("c");
  EXPECT_FALSE(world_.Attached("c")) << "refused for a while";
}

TEST_F(IndependentGroupTest, AnUnresponsiveWorkerThatNeverServedIsRefused) {
  world_.Join("a");
  world_.Join("b");
  world_.Wait();
  world_.Read("a");
  while (world_.Attached("b")) world_.Wait();
  world_.Join("b");
  EXPECT_FALSE(world_.Attached("b"));
}

// Such a worker waits for plans of numbered steps, which no router sends without a barrier.
TEST_F(IndependentGroupTest, AWorkerThatCannotStepAloneIsRefused) {
  world_.Worker("a").steps_alone = false;
  world_.Join("a");
  EXPECT_FALSE(world_.Attached("a"));
  EXPECT_THAT(std::string(world_.closed.back().status.message()), HasSubstr("--coupling=none"));
  world_.Worker("a").steps_alone = true;
  world_.Join("a");
  EXPECT_TRUE(world_.Attached("a"));
}

TEST_F(IndependentGroupTest, ARankCannotReportAnotherAsFailed) {
  world_.Serve({"a", "b"});
  Submit(1, 2);
  world_.ReadAll();
  world_.FailBarrier("a", {1});
  Form();
  EXPECT_THAT(world_.Ranks(), ElementsAre("a", "b"));
}

TEST_F(IndependentGroupTest, ALostRanksRequestsGoToAnother) {
  world_.Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 3; ++i) {
    world_.ReadAll();
    world_.Step("a");
    world_.Step("b");
  }
  world_.Kill("b");
  Form();
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 8u);
  EXPECT_EQ(world_.book().placed_again, 4);
}

TEST_F(IndependentGroupTest, RequestsOfAnEarlierRouterAreRecovered) {
  world_.Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 3; ++i) {
    world_.ReadAll();
    world_.Step("a");
    world_.Step("b");
  }
  world_.Start();
  world_.Join("a");
  world_.Join("b");
  world_.Wait();
  EXPECT_EQ(world_.groups().next_deadline() - world_.now, Options().group.form_timeout + absl::Seconds(1));
  Form();
  EXPECT_EQ(world_.book().recovered, 8);
  world_.Run();
  EXPECT_EQ(world_.book().completed.size(), 8u);
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

TEST(GroupWithPrefixCaches, TheSchedulerHearsOfCachesAndOfWhatWasFoundInThem) {
  GroupSetOptions options;
  options.group.workers = 2;
  options.group.kind = core::GroupKind::kIndependent;
  SeenEvents seen;
  GroupWorld world(options, "least_work", &seen);
  world.Worker("a").prefix_cache = true;
  world.Serve({"a", "b"});
  ASSERT_EQ(seen.members.size(), 2u);
  EXPECT_TRUE(seen.members[0].prefix_cache);
  EXPECT_FALSE(seen.members[1].prefix_cache);
  const uint64_t a = seen.members[0].member, b = seen.members[1].member;
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  for (core::RequestId id = 1; id <= 4; ++id) ASSERT_TRUE(world.book().Submit(id, 10, 5).ok());
  world.Decide();
  // The report also names a request that does not exist.
  world.alter = [](const SimWorker& worker, StepReport& report) {
    if (worker.name != "a" || report.tokens.empty()) return;
    report.cached = {{report.tokens[0].id, 0}, {999, 7}};
    report.prefix_cache_queries = 20;
  };
  world.ReadAll();
  world.Step("a");
  ASSERT_THAT(seen.cached, SizeIs(2));
  EXPECT_EQ(seen.cached[0].second, 0);
  EXPECT_EQ(seen.cached[1], std::pair(core::RequestId{999}, int64_t{7}));
  world.alter = nullptr;
  world.Run();
  EXPECT_THAT(world.book().completed, SizeIs(4));
  // Its cache may have been lost together with the connection.
  world.Break("a");
  world.Join("a");
  for (int i = 0; i < 100 && !(world.Ranks().size() == 2 && world.group().serving()); ++i) {
    world.ReadAll();
    world.Wait();
  }
  ASSERT_EQ(seen.members.size(), 2u);
  for (const core::WorkerSpec& member : seen.members) {
    if (member.prefix_cache) {
      EXPECT_NE(member.member, a);
    } else {
      EXPECT_EQ(member.member, b) << "it has stayed";
    }
  }
  EXPECT_THAT(world.broken(), IsEmpty());
}

}  // namespace
}  // namespace bfio::router
