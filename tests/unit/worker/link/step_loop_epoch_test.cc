// The step loop across epochs and across routers.
#include "worker/link/step_loop.h"

#include "gmock/gmock.h"
#include "tests/testing/step_loop_ranks.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

TEST_F(StepLoopTest, ANewEpochDuringAStepKeepsTokensAndRequests) {
  Start(2, /*gated=*/true);
  OpenEpoch(1, PlanMode::kPipelined);
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 100, 50), Request(11, 60, 50)}));
  ranks_[1]->inbox().OnPlan(MakePlan(1, 1));
  ranks_[0]->gate.AwaitWaiting();
  ranks_[1]->gate.AwaitWaiting();
  for (int i = 0; i < 2; ++i) {
    Epoch next = MakeEpoch(i, 2, PlanMode::kPipelined);
    next.cancellations = {11};
    ranks_[i]->inbox().OnEpoch(next);
  }
  for (auto& rank : ranks_) rank->gate.Give(1);
  const auto cut = Report(0);
  EXPECT_EQ(cut.epoch, 1u);
  EXPECT_EQ(cut.step, 1);
  EXPECT_EQ(cut.output.tokens.size(), 2u);
  EXPECT_NE(cut.barrier_error, "");
  EXPECT_NE(Report(1).barrier_error, "");
  const auto ready = ranks_[0]->link.Next<EpochReady>();
  EXPECT_EQ(ready.epoch, 2u);
  EXPECT_EQ(ready.error, "");
  ASSERT_EQ(ready.active.size(), 1u);
  EXPECT_EQ(ready.active[0].handle, 10u);
  EXPECT_EQ(ready.active[0].generated_tokens, 1);
  EXPECT_EQ(ranks_[1]->link.Next<EpochReady>().error, "");
  // Step numbers start again at 1.
  PlanForAll(2, 1);
  for (auto& rank : ranks_) rank->gate.Give(1);
  const auto report = Report(0);
  EXPECT_EQ(report.epoch, 2u);
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.output.load_tokens, 101);
  EXPECT_EQ(Report(1).barrier_error, "");
}

TEST_F(StepLoopTest, ANewEpochInterruptsAnIdleWaitAndForming) {
  Start(2);
  OpenEpoch(1, PlanMode::kPipelined);
  // The group is parked in epoch 1. Epoch 2 does not form, because rank 1 does not receive it.
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 2, PlanMode::kPipelined));
  ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 3, PlanMode::kPipelined));
  ranks_[1]->inbox().OnEpoch(MakeEpoch(1, 3, PlanMode::kPipelined));
  auto ready = ranks_[0]->link.Next<EpochReady>();
  if (ready.epoch == 2) {  // it may also have skipped epoch 2
    EXPECT_THAT(ready.error, HasSubstr("CANCELLED"));
    ready = ranks_[0]->link.Next<EpochReady>();
  }
  EXPECT_EQ(ready.epoch, 3u);
  EXPECT_EQ(ready.error, "");
  EXPECT_EQ(ranks_[1]->link.Next<EpochReady>().epoch, 3u);
}

TEST_F(StepLoopTest, MessagesOfAnotherEpochAreDropped) {
  Start(1);
  OpenEpoch(5, PlanMode::kLockstep);
  auto& inbox = ranks_[0]->inbox();
  inbox.OnEpoch(MakeEpoch(0, 5, PlanMode::kLockstep));
  inbox.OnEpoch(MakeEpoch(0, 4, PlanMode::kLockstep));
  inbox.OnPlan(MakePlan(4, 1, {Request(10, 1, 1)}));
  inbox.OnPlan(MakePlan(6, 1, {Request(11, 1, 1)}));
  EXPECT_EQ(inbox.dropped(), 4);
  inbox.OnPlan(MakePlan(5, 1, {Request(12, 1, 5)}));
  EXPECT_EQ(Report(0).output.tokens[0].handle, 12u);
  inbox.OnPlan(MakePlan(5, 1, {Request(13, 1, 5)}));  // this step already has a plan
  EXPECT_EQ(inbox.dropped(), 5);
}

// The router dies, and another one takes over.
class RouterLostTest : public StepLoopTest, public ::testing::WithParamInterface<PlanMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, RouterLostTest, ::testing::Values(PlanMode::kLockstep, PlanMode::kPipelined));

TEST_P(RouterLostTest, TheGroupContinuesAndTheNextRouterGetsEveryToken) {
  Start(2, /*gated=*/true);
  for (int i = 0; i < 2; ++i) {
    Epoch epoch = MakeEpoch(i, 7, GetParam());
    epoch.router_instance = 77;
    epoch.retain = kForever;
    ranks_[i]->inbox().OnEpoch(epoch);
  }
  for (auto& rank : ranks_) rank->offer = rank->link.Next<EpochReady>().communicator_offer;
  // Request 11 has no note, so it is not announced. Request 12 ends while there is no router.
  Plan plan = MakePlan(7, 1, {Request(10, 100, 50), Request(11, 60, 50)});
  plan.notes = {{"note", {}}, {"", {}}};
  ranks_[0]->inbox().OnPlan(plan);
  plan.assignments = {Request(12, 30, 2)};
  plan.notes = {{"other", {}}};
  ranks_[1]->inbox().OnPlan(plan);
  const auto step = [&] {
    for (auto& rank : ranks_) rank->gate.Give(1);
  };
  std::vector<uint32_t> tokens;
  const auto expect_report = [&](int64_t number) {
    const StepReport report = Report(0);
    EXPECT_EQ(report.step, number);
    tokens.push_back(report.output.tokens[0].id);
    EXPECT_EQ(Report(1).step, number);
  };
  step();
  expect_report(1);
  for (auto& rank : ranks_) rank->inbox().OnStreamDown(1);
  step();
  expect_report(2);
  for (auto& rank : ranks_) {
    rank->gate.AwaitWaiting();
    rank->inbox().OnStreamUp(2);
  }
  step();
  expect_report(3);
  for (auto& rank : ranks_) {
    const auto hello = rank->link.Next<Hello>();
    EXPECT_EQ(rank->link.last_stream(), 2u);
    EXPECT_EQ(hello.router_instance, 77u);
    EXPECT_EQ(hello.active.size(), rank == ranks_[0] ? 2u : 0u);
    rank->gate.AwaitWaiting();  // the group is in step 4 while the router decides
  }
  for (int i = 0; i < 2; ++i) {
    Epoch epoch = MakeEpoch(i, 1, GetParam());  // the new router's epochs start at 1
    epoch.announce = true;
    epoch.router_instance = 78;
    epoch.retain = kForever;
    ranks_[i]->inbox().OnEpoch(epoch);
  }
  step();
  expect_report(4);
  const auto held = ranks_[0]->link.Next<Announcement>();
  EXPECT_EQ(held.epoch, 1u);
  ASSERT_EQ(held.requests.size(), 1u);
  EXPECT_EQ(held.requests[0].request.handle, 10u);
  EXPECT_EQ(held.requests[0].tokens, tokens);
  EXPECT_FALSE(held.requests[0].ended.has_value());
  const auto ready = ranks_[0]->link.Next<EpochReady>();
  EXPECT_EQ(ready.error, "");
  ASSERT_EQ(ready.active.size(), 2u);
  EXPECT_EQ(ready.active[0].generated_tokens, 4);
  const auto ended = ranks_[1]->link.Next<Announcement>();
  ASSERT_EQ(ended.requests.size(), 1u);
  EXPECT_EQ(ended.requests[0].request.handle, 12u);
  EXPECT_EQ(ended.requests[0].tokens.size(), 2u);
  EXPECT_EQ(ended.requests[0].ended, FinishCause::kLength);
  EXPECT_EQ(ranks_[1]->link.Next<EpochReady>().error, "");
}

TEST_F(StepLoopTest, AParkedGroupSendsAHelloToTheNextRouterWithItsAssignedGroup) {
  Start(1);
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kPipelined);
  epoch.group_name = "blue";
  ranks_[0]->inbox().OnEpoch(epoch);
  EXPECT_EQ(ranks_[0]->link.Next<EpochReady>().error, "");
  ranks_[0]->inbox().OnPlan(MakePlan(1, 1, {Request(10, 5, 1)}));
  EXPECT_TRUE(Report(0).group_idle);
  for (const uint64_t stream : {2, 3}) {
    ranks_[0]->inbox().OnStreamDown(stream - 1);
    ranks_[0]->inbox().OnStreamUp(stream);
    const auto hello = ranks_[0]->link.Next<Hello>();
    EXPECT_TRUE(hello.active.empty());
    EXPECT_EQ(hello.group, "blue");
    // Plans for an epoch of the previous router are not accepted from the new one, which names no group if it
    // is of an older version.
    ranks_[0]->inbox().OnPlan(MakePlan(1, 2, {Request(11, 5, 1)}));
    EXPECT_EQ(ranks_[0]->inbox().dropped(), static_cast<int64_t>(stream) - 1);
    ranks_[0]->inbox().OnEpoch(MakeEpoch(0, 1, PlanMode::kPipelined));
    EXPECT_EQ(ranks_[0]->link.Next<EpochReady>().error, "");
  }
}

TEST_F(StepLoopTest, AnEpochThatDoesNotFormIsAnsweredWithTheReason) {
  Start(2);
  Epoch epoch = MakeEpoch(0, 1, PlanMode::kLockstep);
  epoch.form_timeout = absl::Milliseconds(20);
  ranks_[0]->inbox().OnEpoch(epoch);
  EXPECT_THAT(ranks_[0]->link.Next<EpochReady>().error, HasSubstr("missing rank 1"));
}

}  // namespace
}  // namespace bfio::worker
