// A group with a barrier that loses ranks or its barrier, and workers that violate the protocol.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/router/group/group_world_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;
using Names = std::vector<std::string>;

TEST_F(GroupTest, ALostRanksRequestsAreReplayedOldestFirst) {
  BeginWith({"a", "b"}, 8, 5);
  Kill("b");
  EXPECT_FALSE(group().serving());
  EXPECT_THAT(lost, IsEmpty()) << "until it is known who holds what";
  EXPECT_EQ(died_with.size(), 4u) << "while it is still known who was there";
  EXPECT_EQ(Wait(), 20 * kMs);
  EXPECT_THAT(Formed(), ElementsAre("a"));
  EXPECT_TRUE(std::is_sorted(lost.rbegin(), lost.rend()));
  EXPECT_THAT(lost, UnorderedElementsAreArray(died_with));
  EXPECT_EQ(RunAll(), 8u);
  EXPECT_EQ(PlacedAgain(), 4);
}

// What a worker holds may come back with it; what an engine held has ended with the connection.
TEST_F(GroupTest, RequestsOfTheLastEngineAreLostAtOnceAndThoseOfTheLastWorkerAreNot) {
  for (const bool engines : {false, true}) {
    SCOPED_TRACE(engines);
    Begin(With(2));
    for (const char* name : {"a", "b"}) Worker(name).passes = engines;
    Serve({"a", "b"});
    Submit(1, 6);
    Steps(5);
    Kill("b");
    EXPECT_THAT(lost, IsEmpty()) << "the other rank may be there";
    Kill("a");
    EXPECT_EQ(lost.size(), engines ? 6u : 0u);
    EXPECT_EQ(cluster().placed(), engines ? 0 : 6);
    Join("a");
    Form();
    EXPECT_EQ(lost.size(), 6u);
    EXPECT_EQ(RunAll(), 6u);
  }
}

TEST_F(GroupTest, AWorkerThatLeavesIsNotAFailure) {
  BeginWith({"a", "b"}, 8, 3);
  Leave("b");
  EXPECT_THAT(log, IsSupersetOf({HasSubstr("SIGTERM")}));
  Kill("b");  // it exits before its requests have ended
  EXPECT_TRUE(Drain("a").ok());
  Form();
  RunAll();
  EXPECT_FALSE(Attached("a"));
  EXPECT_THAT(died_with, IsEmpty());
  // One that has nothing may go at once.
  Join("c");
  Form();
  const MemberId c = MemberOf("c");
  decide = false;
  for (core::RequestId id = 1; id <= 8; ++id) Cancel(id);
  RunAll();
  decide = true;
  Leave("c");
  EXPECT_EQ(ClosedWith(c), absl::OkStatus());
  EXPECT_TRUE(group().empty());
}

TEST_F(GroupTest, AReturningWorkerDropsTheRequestsItHeld) {
  BeginWith({"a", "b"}, 8, 5);
  ASSERT_EQ(Worker("b").residents.size(), 4u);
  Break("b");
  Join("b");
  Wait();
  EXPECT_EQ(std::get<EpochOffer>(Worker("b").inbox.back()).cancellations.size(), 4u);
  Form();
  EXPECT_THAT(Worker("b").residents, IsEmpty());
  EXPECT_EQ(RunAll(), 8u);
}

TEST_F(GroupTest, ASilentRankIsCutOffWhenOthersAreAhead) {
  BeginWith({"a", "b"}, 8);
  const MemberId b = MemberOf("b");
  ReadAll();
  StepAlone("a");
  const absl::Time since = now;
  EXPECT_TRUE(WaitWhile([&] { return Attached("b"); }));
  EXPECT_EQ(now - since, Options().step_timeout);
  EXPECT_EQ(ClosedWith(b), absl::DeadlineExceededError("no step report in time"));
  EXPECT_EQ(died_with.size(), 4u) << "it still had its requests";
}

TEST_F(GroupTest, AGroupWithoutReportsIsFormedAgainUnlessItIsParked) {
  BeginWith({"a", "b"});
  Advance(absl::Hours(2));
  EXPECT_TRUE(group().serving());
  Submit(1, 2);
  RunAll();
  Advance(absl::Hours(2));
  EXPECT_TRUE(group().serving());
  Submit(11, 18);
  const absl::Time since = now;
  EXPECT_TRUE(WaitWhile([&] { return group().serving(); }));
  EXPECT_EQ(now - since, 2 * Options().step_timeout);
  EXPECT_THAT(log, IsSupersetOf({HasSubstr("no rank has reported a step in time")}));
  EXPECT_TRUE(Attached("a") && Attached("b"));
}

// --- barrier failures ---

TEST_F(GroupTest, ABarriersFailureIsBlamedOnTheRanksThatOthersCouldNotReach) {
  using Missing = std::vector<std::pair<std::string, std::vector<uint32_t>>>;
  const struct {
    const char* name;
    Names ranks;
    Missing reports;
    Names remaining;
  } cases[] = {
      {"unreachable", {"a", "b", "c"}, {{"a", {2}}, {"b", {2}}, {"c", {}}}, {"a", "b"}},
      {"reaches few others", {"a", "b", "c"}, {{"a", {1, 2}}, {"b", {}}, {"c", {}}}, {"b", "c"}},
      {"waited for another",
       {"a", "b", "c", "d"},
       {{"a", {1}}, {"b", {3}}, {"c", {}}, {"d", {}}},
       {"a", "b", "c"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    BeginWith(one.ranks, 9);
    ReadAll();
    for (const auto& [name, missing] : one.reports) FailBarrier(name, missing);
    EXPECT_EQ(Formed(), one.remaining);
    if (one.remaining != Names{"a", "b"}) continue;
    Join("c");
    EXPECT_FALSE(Attached("c")) << "it is refused for a while";
    EXPECT_THAT(Refusal(), HasSubstr("UNAVAILABLE"));
    Advance(absl::Seconds(2));
    Join("c");
    EXPECT_TRUE(Attached("c"));
  }
}

TEST_F(GroupTest, ASilentRankAfterABarrierFailureIsLeftOut) {
  BeginWith({"a", "b", "c"}, 9);
  ReadAll();
  const MemberId c = MemberOf("c");
  FailBarrier("a");
  EXPECT_FALSE(group().serving());
  FailBarrier("b");
  const absl::Time since = now;
  EXPECT_TRUE(WaitWhile([&] { return Attached("c"); }));
  EXPECT_LE(now - since, 100 * kMs);
  EXPECT_EQ(ClosedWith(c).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
  Join("c");
  EXPECT_TRUE(Attached("c")) << "it is not refused when it comes back";
}

TEST_F(GroupTest, WhenAllReportABarrierFailureInTimeNoneIsLeftOut) {
  // Longer than the group settles after the loss of a rank (Group::kSettleAfterLoss).
  for (const absl::Duration late : {absl::ZeroDuration(), 60 * kMs}) {
    SCOPED_TRACE(late);
    BeginWith({"a", "b", "c"}, 9);
    ReadAll();
    FailBarrier("a");
    Advance(late);
    FailBarrier("b");
    FailBarrier("c");
    const absl::Time since = now;
    EXPECT_THAT(Formed(), ElementsAre("a", "b", "c"));
    EXPECT_LE(now - since, 20 * kMs) << "they need not be waited for";
    EXPECT_EQ(PlacedAgain(), 0) << "what they hold they still hold";
    EXPECT_EQ(RunAll(), 9u);
  }
}

// --- workers that violate the protocol ---

TEST_F(GroupTest, AnUnexpectedMessageEndsTheMembership) {
  BeginWith({"a", "b", "c"}, 8);
  ReadAll();
  const MemberId b = MemberOf("b"), c = MemberOf("c");
  HelloFrom(c, Worker("c").Hello());
  EXPECT_EQ(ClosedWith(c), absl::InvalidArgumentError("unexpected message"));
  EXPECT_THAT(Formed(), ElementsAre("a", "b"));
  ReadAll();
  StepReport report = Worker("b").Compute();
  report.step = 2;
  Report("b", report);
  EXPECT_EQ(ClosedWith(b).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ClosedWith(b).message()), HasSubstr("step 2"));
  for (core::RequestId id = 1; id <= 8; ++id) EXPECT_THAT(client(id).tokens, IsEmpty());
}

// The worker's answer to an offer includes what it reported before. Afterwards its reports of either epoch
// must not be booked under its old rank.
TEST_F(GroupTest, ReportsCountUntilTheAnswerToAnOfferAndAgainInTheNextEpoch) {
  BeginWith({"a", "b"}, 8);
  ReadAll();
  const StepReport first = Worker("b").Compute();
  Report("b", first);
  StepReport late = Worker("b").Compute();
  late.barrier_error = "ended on purpose";
  Join("c");
  Wait();
  ASSERT_FALSE(group().serving());
  Report("b", late);
  EXPECT_EQ(Generated(), 8);
  while (Read("b")) continue;
  Report("b", first);
  StepReport early = first;
  early.epoch = group().epoch();
  Report("b", early);
  EXPECT_EQ(Generated(), 8);
  Form();
  Report("b", first);
  EXPECT_EQ(Generated(), 8);
  EXPECT_TRUE(Attached("b")) << "no more than out of date";
  EXPECT_EQ(totals().tokens_lost + totals().tokens_duplicated, 0);
  EXPECT_EQ(RunAll(), 8u);
}

TEST_F(GroupTest, ReportsAboutRequestsOfOtherRanksAreIgnored) {
  BeginWith({"a", "b"}, 8);
  ReadAll();
  std::vector<core::RequestId> of_a;
  for (const auto& plan : Worker("a").plans.front().assigned) of_a.push_back(plan.id);
  StepReport report = Worker("b").Compute();
  EXPECT_THAT(report.tokens, SizeIs(4));
  for (const core::RequestId id : of_a) {
    report.tokens.push_back({id, 2});
    report.token_ids.insert(report.token_ids.end(), {7, 7});
    report.finished.push_back({id, FinishReason::kStop});
    report.preempted.push_back(id);
  }
  report.tokens.push_back({999, 1});
  report.token_ids.push_back(9);
  report.rejected.push_back({998, absl::InternalError("no such thing")});
  report.preempted.push_back(997);
  Report("b", report);
  for (const core::RequestId id : of_a) EXPECT_THAT(client(id).tokens, IsEmpty());
  EXPECT_EQ(Open(), 8u);
  EXPECT_EQ(totals().preempted, 0);
}

TEST_F(GroupTest, ARankWhoseTokenCountsDifferIsCutOff) {
  BeginWith({"a", "b"}, 8, 5);
  const MemberId b = MemberOf("b");
  const auto held = static_cast<int64_t>(Worker("b").residents.size());
  // For one request it counts one token more than it has reported, for another one less.
  ++Worker("b").residents.begin()->second.made;
  --std::prev(Worker("b").residents.end())->second.made;
  Join("c");
  Wait();
  ReadAll();
  EXPECT_EQ(ClosedWith(b).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(totals().tokens_lost, 1);
  EXPECT_EQ(totals().tokens_duplicated, 1);
  EXPECT_THAT(Formed(), ElementsAre("a", "c"));
  EXPECT_EQ(PlacedAgain(), held);
  EXPECT_EQ(RunAll(), 8u);
}

TEST_F(GroupTest, AMemberCannotClaimAnothersRequests) {
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed);
    BeginWith({"a", "b"}, 8, 5);
    const auto of_b = Worker("b").residents;
    std::vector<core::RequestId> claimed;
    for (const auto& [id, resident] : of_b) claimed.push_back(id);
    ASSERT_THAT(claimed, SizeIs(4));
    alter_ready = [&](SimWorker& worker, EpochReady& ready) {
      if (worker.name != "a") return;
      for (const auto& [id, resident] : of_b) ready.active.push_back({id, resident.kv(), resident.made});
    };
    killed ? Kill("b") : Join("c");
    Wait();
    decide = false;
    Form();
    decide = true;
    alter_ready = nullptr;
    EXPECT_EQ(lost.size(), killed ? 4u : 0u);
    Submit(9, 9);
    EXPECT_THAT(last_part["a"].cancellations, UnorderedElementsAreArray(claimed));
    EXPECT_EQ(RunAll(), 9u);
  }
}

}  // namespace
}  // namespace bfio::router
