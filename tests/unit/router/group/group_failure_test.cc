// A group with a barrier that loses ranks or its barrier, and workers that violate the protocol.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/group/barrier_group_test.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

// --- lost ranks ---

TEST_F(BarrierGroupTest, ALostRanksRequestsAreReplayedOldestFirst) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  world_->Kill("b");
  EXPECT_FALSE(world_->group().serving());
  EXPECT_THAT(world_->lost, IsEmpty()) << "until it is known who holds what";
  EXPECT_EQ(world_->Wait(), absl::Milliseconds(20));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
  EXPECT_EQ(world_->lost.size(), 4u);
  EXPECT_TRUE(std::is_sorted(world_->lost.rbegin(), world_->lost.rend()));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
  EXPECT_EQ(world_->book().placed_again, 4);
}

// What a worker holds may come back with it; what an engine held has ended with the connection.
TEST_F(BarrierGroupTest, RequestsOfTheLastEngineAreLostAtOnceAndThoseOfTheLastWorkerAreNot) {
  for (const bool engines : {false, true}) {
    SCOPED_TRACE(engines);
    Start(2);
    for (const char* name : {"a", "b"}) world_->Worker(name).passes = engines;
    world_->Serve({"a", "b"});
    Submit(1, 6);
    for (int i = 0; i < 5; ++i) world_->Step("a");
    world_->Kill("b");
    EXPECT_THAT(world_->lost, IsEmpty()) << "the other rank may be there";
    world_->Kill("a");
    EXPECT_EQ(world_->lost.size(), engines ? 6u : 0u);
    EXPECT_EQ(world_->cluster().placed(), engines ? 0 : 6);
    world_->Join("a");
    Form();
    EXPECT_EQ(world_->lost.size(), 6u);
    world_->Run();
    EXPECT_EQ(world_->book().completed.size(), 6u);
  }
}

TEST_F(BarrierGroupTest, AFailureIsReportedForTheWorkersOwnRequests) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const std::vector<core::RequestId>& died_with = world_->book().died_with;
  world_->Kill("b");
  EXPECT_EQ(died_with.size(), 4u) << "while it is still known who was there";
  Form();
  std::vector<core::RequestId> lost = world_->lost;
  std::sort(lost.begin(), lost.end());
  EXPECT_EQ(died_with, lost);
  // Worker a has four slots, and the other four of the eight requests wait.
  world_->Kill("a");
  EXPECT_EQ(died_with.size(), 8u);
}

TEST_F(BarrierGroupTest, ASilentRanksRequestsCountAsOnItWhenItFailed) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  while (world_->Attached("b")) world_->Wait();
  EXPECT_EQ(world_->book().died_with.size(), 4u);
}

TEST_F(BarrierGroupTest, AWorkerThatLeavesIsNotAFailure) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 3; ++i) world_->Step("a");
  const MemberId b = world_->Worker("b").member;
  world_->Do([&](GroupSet& set, Commands& out) { set.OnLeave(b, "SIGTERM", world_->now, out); });
  world_->Kill("b");  // it exits before its requests have ended
  EXPECT_THAT(world_->book().died_with, IsEmpty());
  world_->Do([&](GroupSet& set, Commands& out) { EXPECT_TRUE(set.Drain("a", world_->now, out).ok()); });
  Form();
  world_->Run();
  EXPECT_FALSE(world_->Attached("a"));
  EXPECT_THAT(world_->book().died_with, IsEmpty());
}

TEST_F(BarrierGroupTest, AnEpochWithoutRanksIsClosed) {
  Serve({"a", "b"});
  world_->Break("a");
  world_->Break("b");
  EXPECT_TRUE(world_->group().empty());
  EXPECT_FALSE(world_->groups().serving());
  EXPECT_TRUE(world_->group().complete()) << "it has served once";
  world_->Join("a");
  world_->Wait();
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a")) << "once formed it does not wait for all";
}

TEST_F(BarrierGroupTest, AReturningWorkerDropsTheRequestsItHeld) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  ASSERT_EQ(world_->Worker("b").residents.size(), 4u);
  world_->Break("b");
  world_->Join("b");
  world_->Wait();
  const auto offer = std::get<EpochOffer>(world_->Worker("b").inbox.back());
  EXPECT_EQ(offer.cancellations.size(), 4u);
  Form();
  EXPECT_THAT(world_->Worker("b").residents, IsEmpty());
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, ASilentRankIsCutOffWhenOthersAreAhead) {
  Serve({"a", "b"});
  Submit(1, 8);
  const MemberId b = world_->Worker("b").member;
  world_->ReadAll();
  world_->Report("a", world_->Worker("a").Compute());
  const absl::Time since = world_->now;
  while (world_->Attached("b")) world_->Wait();
  EXPECT_EQ(world_->now - since, options_.group.step_timeout);
  EXPECT_EQ(ClosedWith("b", b), absl::DeadlineExceededError("no step report in time"));
}

TEST_F(BarrierGroupTest, AGroupWithoutReportsIsFormedAgain) {
  Serve({"a", "b"});
  Submit(1, 8);
  const absl::Time since = world_->now;
  while (world_->group().serving()) world_->Wait();
  EXPECT_EQ(world_->now - since, 2 * options_.group.step_timeout);
  EXPECT_THAT(world_->log, IsSupersetOf({HasSubstr("no rank has reported a step in time")}));
  EXPECT_TRUE(world_->Attached("a") && world_->Attached("b"));
}

TEST_F(BarrierGroupTest, AParkedGroupMayStaySilent) {
  Serve({"a", "b"});
  world_->Advance(absl::Hours(2));
  EXPECT_TRUE(world_->group().serving());
  Submit(1, 2);
  world_->Run();
  world_->Advance(absl::Hours(2));
  EXPECT_TRUE(world_->group().serving());
  EXPECT_EQ(world_->book().completed.size(), 2u);
}

// --- barrier failures ---

TEST_F(BarrierGroupTest, ASilentRankAfterABarrierFailureIsLeftOut) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  const MemberId c = world_->Worker("c").member;
  world_->FailBarrier("a");
  EXPECT_FALSE(world_->group().serving());
  world_->FailBarrier("b");
  const absl::Time since = world_->now;
  while (world_->Attached("c")) world_->Wait();
  EXPECT_LE(world_->now - since, absl::Milliseconds(100));
  EXPECT_EQ(ClosedWith("c", c).code(), absl::StatusCode::kDeadlineExceeded);
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  world_->Join("c");
  EXPECT_TRUE(world_->Attached("c")) << "it is not refused when it comes back";
}

TEST_F(BarrierGroupTest, RanksHaveTimeToReportABarrierFailure) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a");
  // Longer than the group settles after the loss of a rank (Group::kSettleAfterLoss).
  world_->Advance(absl::Milliseconds(60));
  world_->FailBarrier("b");
  world_->FailBarrier("c");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(world_->book().placed_again, 0);
}

TEST_F(BarrierGroupTest, WhenAllReportABarrierFailureNoneIsLeftOut) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  for (const char* name : {"a", "b", "c"}) world_->FailBarrier(name);
  const absl::Time since = world_->now;
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(world_->now - since, absl::Milliseconds(20)) << "they need not be waited for";
  EXPECT_EQ(world_->book().placed_again, 0) << "what they hold they still hold";
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 9u);
}

TEST_F(BarrierGroupTest, ARankThatOthersCannotReachIsRefusedForAWhile) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a", {2});
  world_->FailBarrier("b", {2});
  world_->FailBarrier("c");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b"));
  world_->Join("c");
  EXPECT_FALSE(world_->Attached("c"));
  EXPECT_EQ(world_->closed.back().status.code(), absl::StatusCode::kUnavailable);
  world_->Advance(absl::Seconds(2));
  world_->Join("c");
  EXPECT_TRUE(world_->Attached("c"));
}

TEST_F(BarrierGroupTest, ARankThatReachesFewOthersIsTheCause) {
  Serve({"a", "b", "c"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a", {1, 2});
  world_->FailBarrier("b");
  world_->FailBarrier("c");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("b", "c"));
}

TEST_F(BarrierGroupTest, ARankThatWaitedForAnotherIsNotTheCause) {
  Serve({"a", "b", "c", "d"});
  Submit(1, 9);
  world_->ReadAll();
  world_->FailBarrier("a", {1});
  world_->FailBarrier("b", {3});
  world_->FailBarrier("c");
  world_->FailBarrier("d");
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "b", "c"));
}

// --- workers that violate the protocol ---

TEST_F(BarrierGroupTest, ASecondHelloIsAProtocolError) {
  Serve({"a", "b"});
  const MemberId b = world_->Worker("b").member;
  world_->Do(
      [&](GroupSet& set, Commands& out) { set.OnHello(b, world_->Worker("b").Hello(), world_->now, out); });
  EXPECT_EQ(ClosedWith("b", b), absl::InvalidArgumentError("unexpected message"));
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a"));
}

TEST_F(BarrierGroupTest, AStepOutOfSequenceEndsTheMembership) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  const MemberId b = world_->Worker("b").member;
  StepReport report = world_->Worker("b").Compute();
  report.step = 2;
  world_->Report("b", report);
  EXPECT_EQ(ClosedWith("b", b).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ClosedWith("b", b).message()), HasSubstr("step 2"));
  for (core::RequestId id = 1; id <= 8; ++id) EXPECT_EQ(world_->book().live.at(id).delivered, 0u);
}

TEST_F(BarrierGroupTest, AReportOfAnEarlierEpochIsDropped) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  const StepReport report = world_->Worker("b").Compute();
  world_->Report("b", report);
  world_->Join("c");
  world_->Wait();
  while (world_->Read("b")) continue;  // reads a plan and answers the offer
  world_->Report("b", report);
  EXPECT_TRUE(world_->Attached("b"));
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 4) << "once";
  Form();
  world_->Report("b", report);
  EXPECT_TRUE(world_->Attached("b"));
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 4);
}

// The worker's answer to the offer includes these tokens in its counts.
TEST_F(BarrierGroupTest, AReportBeforeTheAnswerToAnOfferCounts) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  StepReport late = world_->Worker("b").Compute();
  late.barrier_error = "ended on purpose";
  world_->Join("c");
  world_->Wait();
  ASSERT_FALSE(world_->group().serving());
  world_->Report("b", late);
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 4);
  Form();
  EXPECT_EQ(world_->book().lost + world_->book().doubled, 0);
  EXPECT_TRUE(world_->Attached("b"));
}

TEST_F(BarrierGroupTest, AReportOfAnEpochThatHasNotOpenedIsDropped) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->Join("c");
  world_->Wait();
  world_->Read("b");
  StepReport early;
  early.epoch = world_->group().epoch();
  early.step = 1;
  early.tokens = {{1, 1}, {2, 1}, {3, 1}, {4, 1}};
  early.token_ids = {1, 2, 3, 4};
  world_->Report("b", early);
  EXPECT_EQ(world_->group().steps().totals().generated_tokens, 0);
  EXPECT_TRUE(world_->Attached("b"));
}

TEST_F(BarrierGroupTest, ReportsAboutRequestsOfOtherRanksAreIgnored) {
  Serve({"a", "b"});
  Submit(1, 8);
  world_->ReadAll();
  std::vector<core::RequestId> of_a;
  for (const auto& plan : world_->Worker("a").plans.front().assigned) of_a.push_back(plan.id);
  StepReport report = world_->Worker("b").Compute();
  const size_t own = report.tokens.size();
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
  world_->Report("b", report);
  EXPECT_EQ(own, 4u);
  for (const core::RequestId id : of_a) EXPECT_EQ(world_->book().live.at(id).delivered, 0u);
  EXPECT_THAT(world_->book().completed, IsEmpty());
  EXPECT_THAT(world_->book().failed, IsEmpty());
}

TEST_F(BarrierGroupTest, ARankWhoseTokenCountsDifferIsCutOff) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const MemberId b = world_->Worker("b").member;
  const size_t held = world_->Worker("b").residents.size();
  // For one request it counts one token more than it has reported, for another one less.
  ++world_->Worker("b").residents.begin()->second.made;
  --std::prev(world_->Worker("b").residents.end())->second.made;
  world_->Join("c");
  world_->Wait();
  world_->ReadAll();
  EXPECT_EQ(ClosedWith("b", b).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_->book().lost, 1);
  EXPECT_EQ(world_->book().doubled, 1);
  Form();
  EXPECT_THAT(world_->Ranks(), ElementsAre("a", "c"));
  EXPECT_EQ(world_->book().placed_again, static_cast<int64_t>(held));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, AMemberCannotClaimAnothersRequests) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const auto of_b = world_->Worker("b").residents;
  world_->Kill("b");
  world_->alter_ready = [&](SimWorker&, EpochReady& ready) {
    for (const auto& [id, resident] : of_b) ready.active.push_back({id, resident.kv(), resident.made});
  };
  Form();
  world_->alter_ready = nullptr;
  EXPECT_EQ(world_->lost.size(), 4u);
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 8u);
}

TEST_F(BarrierGroupTest, AMemberCannotClaimTheRequestsOfOneThatServes) {
  Serve({"a", "b"});
  Submit(1, 8);
  for (int i = 0; i < 5; ++i) world_->Step("a");
  const auto of_b = world_->Worker("b").residents;
  std::vector<core::RequestId> claimed;
  for (const auto& [id, resident] : of_b) claimed.push_back(id);
  ASSERT_THAT(claimed, SizeIs(4));
  world_->alter_ready = [&](SimWorker& worker, EpochReady& ready) {
    if (worker.name != "a") return;
    for (const auto& [id, resident] : of_b) ready.active.push_back({id, resident.kv(), resident.made});
  };
  world_->Join("c");
  world_->Wait();
  world_->decide = false;
  Form();
  world_->alter_ready = nullptr;
  world_->decide = true;
  EXPECT_THAT(world_->lost, IsEmpty()) << "b still has them";
  Submit(9, 9);
  EXPECT_THAT(world_->last_part["a"].cancellations, UnorderedElementsAreArray(claimed));
  world_->Run();
  EXPECT_EQ(world_->book().completed.size(), 9u);
}

TEST_F(BarrierGroupTest, AnAnswerForAnotherEpochIsIgnored) {
  Start(2);
  world_->Join("a");
  world_->Join("b");
  world_->Wait();
  EpochReady wrong;
  wrong.epoch = 7;
  world_->Ready("a", wrong);
  world_->Read("b");
  EXPECT_FALSE(world_->group().serving());
  world_->Read("a");
  EXPECT_TRUE(world_->group().serving());
}

}  // namespace
}  // namespace bfio::router
