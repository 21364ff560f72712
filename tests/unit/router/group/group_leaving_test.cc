// A group with a barrier after a restart of the router, and workers that leave.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/group/barrier_group_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

// --- a restarted router ---

TEST_F(BarrierGroupTest, RequestsOfAnEarlierRouterAreRecoveredAndOrphanedOnesDropped) {
  Serve({"a", "b"});
  Submit(1, 4);
  Submit(5, 8, 20, /*resumable=*/false);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const auto held = world_->Worker("a").residents.size() + world_->Worker("b").residents.size();
  ASSERT_EQ(held, 8u);
  world_->Start();
  EXPECT_FALSE(world_->groups().ExpectsAnnouncements());
  world_->Join("a");
  EXPECT_TRUE(world_->groups().ExpectsAnnouncements());
  world_->Join("b");
  Form();
  EXPECT_FALSE(world_->groups().ExpectsAnnouncements());
  EXPECT_EQ(world_->book().recovered, 4);
  EXPECT_EQ(world_->cluster().placed(), 4);
  EXPECT_EQ(world_->Worker("a").residents.size() + world_->Worker("b").residents.size(), 8u);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_THAT(world_->Worker("a").residents, IsEmpty());
  EXPECT_THAT(world_->Worker("b").residents, IsEmpty());
  EXPECT_EQ(world_->cluster().totals().drift_tokens, 0);
}

TEST_F(BarrierGroupTest, TheFirstEpochWaitsABoundedTimeForOtherHolders) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  EXPECT_EQ(world_->Wait(), options_.group.restart_settle);
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  EXPECT_FALSE(world_->group().complete());
}

TEST_F(BarrierGroupTest, WithoutRequestsOfAnEarlierRouterThereIsNothingToWaitFor) {
  Start(2);
  world_->Join("a");
  EXPECT_EQ(world_->groups().next_deadline(), absl::InfiniteFuture());
}

// If the machine's clock was set back, the next router may assign a request number again.
TEST_F(BarrierGroupTest, AnOrphanedRequestIsDistinctFromANewOneOfItsNumber) {
  Serve({"a"});
  Submit(5, 5, 20, /*resumable=*/false);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  ASSERT_EQ(world_->Worker("a").residents.count(5), 1u);
  world_->Start();
  Submit(5, 5);
  world_->Join("a");
  Form();
  EXPECT_THAT(world_->last_part["a"].cancellations, ElementsAre(5));
  EXPECT_THAT(world_->last_part["a"].placements, ElementsAre(Field(&core::Placement::id, 5)));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 1u) << "with tokens of its own from the first one on";
}

// The epoch ends before the worker applies its first plan: the next epoch must repeat the drops.
TEST_F(BarrierGroupTest, OrphanedRequestsAreRememberedUntilTheWorkerHasDroppedThem) {
  Serve({"a"});
  Submit(5, 6, 20, /*resumable=*/false);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  Form();
  const int64_t parts = world_->parts["a"];
  Submit(5, 5);
  ASSERT_EQ(world_->parts["a"], parts + 1);
  EXPECT_THAT(world_->last_part["a"].cancellations, ElementsAre(5, 6));
  // The worker does not read that plan.
  world_->Join("b");
  world_->Wait();
  world_->Worker("a").inbox.pop_front();
  world_->decide = false;
  Form();
  EXPECT_EQ(world_->lost, std::vector<core::RequestId>{5});
  world_->decide = true;
  world_->Decide();
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 1u);
  EXPECT_THAT(world_->Worker("a").residents, IsEmpty());
}

TEST_F(BarrierGroupTest, AnnouncementsBeyondTheBudgetAreNotRecovered) {
  GroupSetOptions options = Options(1);
  options.group.max_announced_bytes = 250;
  Start(options);
  world_->Serve({"a"});
  Submit(1, 3);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  Form();
  EXPECT_EQ(world_->book().recovered, 2);
  EXPECT_THAT(world_->Ranks(), ElementsAre("a")) << "and it is not sent away, to come again with the same";
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 2u);
  EXPECT_THAT(world_->Worker("a").residents, IsEmpty());
}

TEST_F(BarrierGroupTest, TheBudgetIsOfAllWorkersTogether) {
  GroupSetOptions options = Options(2);
  options.group.max_announced_bytes = 250;
  Start(options);
  world_->Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) {
    world_->Step("a");
    world_->Step("b");
  }
  world_->Start();
  world_->Join("a");
  world_->Join("b");
  Form();
  EXPECT_EQ(world_->book().recovered, 2) << "each of two would have been let have its two";
}

TEST_F(BarrierGroupTest, UnrequestedAnnouncementsAreIgnored) {
  Serve({"a"});
  Announcement announcement;
  announcement.epoch = world_->group().epoch();
  announcement.requests.emplace_back().id = 3;
  announcement.bytes = {10};
  const MemberId a = world_->Worker("a").member;
  world_->Do([&](GroupSet& set, Commands& out) { set.OnAnnouncement(a, announcement, world_->now, out); });
  world_->Join("b");
  world_->Wait();
  Form();
  EXPECT_EQ(world_->book().recovered, 0);
}

// --- leaving workers ---

TEST_F(BarrierGroupTest, ADrainCanBeUndoneWhileTheWorkerIsAttached) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const auto undrain = [&](absl::string_view worker) {
    absl::Status status;
    world_->Do([&](GroupSet& set, Commands& out) { status = set.Undrain(worker, out); });
    return status.code();
  };
  EXPECT_EQ(undrain("nobody"), absl::StatusCode::kNotFound);
  EXPECT_EQ(undrain("b"), absl::StatusCode::kFailedPrecondition) << "it is not drained";
  // Worker a has requests, so it stays until they have ended.
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  EXPECT_TRUE(world_->group().Members()[0].draining);
  EXPECT_EQ(undrain("a"), absl::StatusCode::kOk);
  EXPECT_FALSE(world_->group().Members()[0].draining);
  Submit(11, 18);
  world_->Run();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  EXPECT_EQ(world_->book().completed.size(), 12u);
  // A worker that leaves on its own initiative cannot be undrained.
  const MemberId a = world_->Worker("a").member;
  Submit(21, 24);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Do([&](GroupSet& set, Commands& out) { set.OnLeave(a, "signal", world_->now, out); });
  EXPECT_EQ(undrain("a"), absl::StatusCode::kFailedPrecondition);
}

TEST_F(BarrierGroupTest, ADrainedWorkerFinishesItsRequestsAndGetsNoNewOnes) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  EXPECT_EQ(world_->groups().Drain("nobody", world_->now, *std::make_unique<Commands>()).code(),
            absl::StatusCode::kNotFound);
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("b", world_->now, out).ok()); });
  const MemberId b = world_->Worker("b").member;
  EXPECT_TRUE(world_->group().Members()[1].draining);
  Submit(11, 18);
  world_->alter = [](SimWorker& worker, StepReport&) {
    if (worker.name != "b") return;
    for (const auto& [id, resident] : worker.residents) EXPECT_LE(id, 4u);
  };
  world_->Run();
  EXPECT_EQ(ClosedWith("b", b), absl::OkStatus());
  EXPECT_TRUE(world_->Worker("b").shut_down);
  EXPECT_EQ(world_->book().placed_again, 0);
  Form();
  world_->Run();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  EXPECT_EQ(world_->book().completed.size(), 12u);
}

TEST_F(BarrierGroupTest, ADrainedWorkerStaysWhilePlacementsAreInFlight) {
  Serve({"a"});
  Submit(1, 2);
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  EXPECT_TRUE(world_->Attached("a"));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 2u);
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, AWorkerMayRequestToLeave) {
  Serve({"a"});
  const MemberId a = world_->Worker("a").member;
  world_->Do([&](GroupSet& set, Commands& out) { set.OnLeave(a, "SIGTERM", world_->now, out); });
  EXPECT_THAT(world_->log, IsSupersetOf({HasSubstr("SIGTERM")}));
  EXPECT_EQ(ClosedWith("a", a), absl::OkStatus()) << "it has nothing";
  EXPECT_TRUE(world_->group().empty());
}

TEST_F(BarrierGroupTest, BetweenEpochsNoWorkerIsReleased) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Join("c");
  world_->Wait();
  ASSERT_FALSE(world_->group().serving());
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("b", world_->now, out).ok()); });
  EXPECT_TRUE(world_->Attached("b")) << "it is not known what it holds";
  Form();
  world_->Run();
  EXPECT_FALSE(world_->Attached("b"));
  Form();
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 4u);
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, AWorkerThatHoldsRequestsIsNotReleasedBeforeItHasServed) {
  Serve({"a", "b"});
  Submit(1, 4);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  world_->Start();
  world_->Join("a");
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  EXPECT_TRUE(world_->Attached("a"));
  world_->Join("b");
  Form();
  world_->Run();
  EXPECT_FALSE(world_->Attached("a"));
  EXPECT_EQ(world_->book().completed.size(), 4u);
}

TEST_F(BarrierGroupTest, ADrainedWorkerWhoseConnectionBreaksIsStillDrained) {
  const auto drains = [&] { return world_->group().Members().at(0).draining; };
  Start(2);
  const uint64_t own = options_.group.instance, earlier = 9;
  const auto join = [&](uint64_t followed) {
    world_->Worker("a").followed = followed;
    world_->Join("a");
  };
  const auto drain = [&] {
    // Without decisions the worker is not released yet.
    world_->decide = false;
    world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  };
  join(0);
  drain();
  world_->Break("a");
  join(own);
  EXPECT_TRUE(drains());
  world_->Break("a");
  join(0);
  EXPECT_FALSE(drains()) << "another process of that name";
  world_->Break("a");
  join(own);
  EXPECT_FALSE(drains());
  world_->Break("a");
  // Drained before this router's first plan: the worker still names the previous router.
  join(earlier);
  drain();
  world_->Break("a");
  join(earlier);
  EXPECT_TRUE(drains());
}

}  // namespace
}  // namespace bfio::router
