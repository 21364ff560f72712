// A group with a barrier after a restart of the router, and workers that leave.
#include <string>
#include <vector>

#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

TEST_F(GroupTest, RequestsOfAnEarlierRouterAreRecoveredAndOrphanedOnesDropped) {
  BeginWith({"a", "b"}, 4);
  Submit(5, 8, 20, /*resumable=*/false);
  Steps(5);
  ASSERT_EQ(Worker("a").residents.size() + Worker("b").residents.size(), 8u);
  Start();
  EXPECT_FALSE(groups().ExpectsAnnouncements());
  Join("a");
  EXPECT_TRUE(groups().ExpectsAnnouncements());
  Join("b");
  Form();
  EXPECT_FALSE(groups().ExpectsAnnouncements());
  EXPECT_EQ(totals().recovered, 4);
  EXPECT_EQ(cluster().placed(), 4);
  EXPECT_EQ(Worker("a").residents.size() + Worker("b").residents.size(), 8u);
  EXPECT_EQ(RunAll(), 4u);
  EXPECT_THAT(Worker("a").residents, IsEmpty());
  EXPECT_THAT(Worker("b").residents, IsEmpty());
  EXPECT_EQ(cluster().totals().drift_tokens, 0);
  // The first epoch waits a bounded time for other holders.
  Submit(11, 14);
  Steps(3);
  Start();
  Join("b");
  EXPECT_EQ(Wait(), Options().restart_settle);
  EXPECT_THAT(Formed(), ElementsAre("b"));
  EXPECT_FALSE(group().complete());
}

TEST_F(GroupTest, OrphanedRequestsAreDroppedAgainWhereTheEpochEndedBefore) {
  BeginWith({"a"});
  Submit(5, 6, 20, /*resumable=*/false);
  Steps(3);
  Start();
  Submit(7, 7);
  Join("a");
  Form();
  EXPECT_THAT(last_part["a"].cancellations, ElementsAre(5, 6));
  EXPECT_THAT(last_part["a"].placements, ElementsAre(Field(&core::Placement::id, 7)));
  // The epoch ends before the worker applies that plan: the next one must repeat the drops.
  Join("b");
  Wait();
  decide = false;
  Form();
  EXPECT_THAT(lost, ElementsAre(7));
  decide = true;
  Decide();
  EXPECT_EQ(RunAll(), 1u);
  EXPECT_THAT(Worker("a").residents, IsEmpty());
}

TEST_F(GroupTest, AnnouncementsBeyondTheBudgetOfAllWorkersAreNotRecovered) {
  for (const bool two : {false, true}) {
    SCOPED_TRACE(two);
    WorldOptions options = With(two ? 2 : 1);
    options.groups.group.max_announced_bytes = 250;
    Begin(options);
    const Names names = two ? Names{"a", "b"} : Names{"a"};
    Serve(names);
    Submit(1, two ? 4 : 3);
    Steps(3);
    Start();
    for (const std::string& name : names) Join(name);
    Form();
    EXPECT_EQ(totals().recovered, 2) << "each of two would have been let have its two";
    EXPECT_EQ(Ranks(), names) << "and none is sent away, to come again with the same";
    EXPECT_EQ(RunAll(), two ? 4u : 3u) << "clients send the others again";
    EXPECT_THAT(Worker("a").residents, IsEmpty());
  }
}

TEST_F(GroupTest, UnrequestedAnnouncementsAreIgnored) {
  BeginWith({"a"});
  Announcement announcement = {.epoch = group().epoch(), .bytes = {10}};
  announcement.requests.emplace_back().id = 3;
  Do([&](GroupSet& set, Commands& out) { set.OnAnnouncement(MemberOf("a"), announcement, now, out); });
  Join("b");
  Wait();
  Form();
  EXPECT_EQ(totals().recovered, 0);
}

// --- leaving workers ---

TEST_F(GroupTest, ADrainCanBeUndoneWhileTheWorkerIsAttached) {
  BeginWith({"a", "b"}, 4, 3);
  EXPECT_TRUE(absl::IsNotFound(Undrain("nobody")));
  EXPECT_TRUE(absl::IsFailedPrecondition(Undrain("b"))) << "it is not drained";
  // Worker a has requests, so it stays until they have ended.
  EXPECT_TRUE(Drain("a").ok());
  EXPECT_TRUE(group().Members()[0].draining);
  EXPECT_TRUE(Undrain("a").ok());
  EXPECT_FALSE(group().Members()[0].draining);
  Submit(11, 18);
  RunAll();
  EXPECT_THAT(Ranks(), ElementsAre("a", "b"));
  EXPECT_EQ(Completed(), 12u);
  // A worker that leaves on its own initiative cannot be undrained.
  Submit(21, 24);
  Steps(3);
  Leave("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(Undrain("a")));
}

TEST_F(GroupTest, ADrainedWorkerFinishesItsRequestsAndGetsNoNewOnes) {
  BeginWith({"a", "b"}, 4);
  EXPECT_TRUE(absl::IsNotFound(Drain("nobody")));
  EXPECT_TRUE(Drain("b").ok());
  ASSERT_TRUE(Attached("b")) << "its first requests are on their way";
  const MemberId b = MemberOf("b");
  EXPECT_TRUE(group().Members()[1].draining);
  Submit(11, 18);
  alter = [](SimWorker& worker, StepReport&) {
    if (worker.name != "b") return;
    for (const auto& [id, resident] : worker.residents) EXPECT_LE(id, 4u);
  };
  RunAll();
  EXPECT_EQ(ClosedWith(b), absl::OkStatus());
  EXPECT_TRUE(Worker("b").shut_down);
  EXPECT_EQ(PlacedAgain(), 0);
  EXPECT_THAT(Formed(), ElementsAre("a"));
  EXPECT_EQ(RunAll(), 12u);
}

TEST_F(GroupTest, AWorkerIsNotReleasedWhileItIsUnknownWhatItHolds) {
  BeginWith({"a", "b"}, 4, 3);
  // Between epochs.
  Join("c");
  Wait();
  ASSERT_FALSE(group().serving());
  EXPECT_TRUE(Drain("b").ok());
  EXPECT_TRUE(Attached("b"));
  Form();
  Steps(3);
  // Before it has served this router.
  Start();
  Join("a");
  EXPECT_TRUE(Drain("a").ok());
  EXPECT_TRUE(Attached("a"));
  Join("b");
  Join("c");
  Form();
  RunAll();
  EXPECT_FALSE(Attached("a"));
  EXPECT_EQ(Completed(), 4u);
  EXPECT_EQ(PlacedAgain(), 0);
}

TEST_F(GroupTest, ADrainedWorkerWhoseConnectionBreaksIsStillDrained) {
  const uint64_t own = Options().instance, earlier = 9;
  const auto join = [&](uint64_t followed) {
    Break("a");
    Worker("a").followed = followed;
    Join("a");
    return group().Members().at(0).draining;
  };
  // Without decisions the worker is not released yet.
  decide = false;
  join(0);
  EXPECT_TRUE(Drain("a").ok());
  EXPECT_TRUE(join(own));
  EXPECT_FALSE(join(0)) << "another process of that name";
  EXPECT_FALSE(join(own));
  // Drained before this router's first plan: the worker still names the previous router.
  join(earlier);
  EXPECT_TRUE(Drain("a").ok());
  EXPECT_TRUE(join(earlier));
}

}  // namespace
}  // namespace bfio::router
