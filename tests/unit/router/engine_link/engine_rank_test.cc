// An engine's rank as a worker: its reports must equal the accounts of the group.
#include "router/engine_link/engine_rank.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Tokens = std::vector<uint32_t>;

class EngineRankTest : public ::testing::Test {
 protected:
  void Epoch(uint64_t epoch, std::vector<core::RequestId> drop = {}) {
    EpochOffer offer;
    offer.epoch = epoch_ = epoch;
    offer.cancellations = std::move(drop);
    plan_ = 0;
    rank_.OnEpoch(offer, now_, out_);
  }
  // Places requests with prompts of 10 tokens.
  void Plan(std::vector<core::RequestId> place, std::vector<core::RequestId> cancel = {}) {
    PlanPart plan;
    plan.epoch = epoch_;
    plan.apply_step = ++plan_;
    plan.cancellations = std::move(cancel);
    std::vector<EngineRank::Placement> placements;
    for (const core::RequestId id : place) placements.push_back({id, CallOf(id)});
    rank_.OnPlan(plan, std::move(placements), now_, out_);
  }
  EngineCall CallOf(core::RequestId id) {
    EngineCall call;
    call.id = id;
    call.prompt = Tokens(10, 3);
    call.max_new_tokens = max_new_tokens_;
    call.passed = passed_;
    return call;
  }
  void Token(CallNumber call, uint32_t token) { rank_.OnTokens(call, {token}, nullptr, now_, out_); }
  void Wait(absl::Duration time) {
    now_ += time;
    rank_.OnTimer(now_, out_);
  }
  // Takes the reports so far.
  std::vector<StepReport> Reports() { return std::exchange(out_.reports, {}); }

  EngineRank rank_;
  EngineRank::Output out_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t epoch_ = 0;
  int64_t plan_ = 0;
  uint32_t max_new_tokens_ = 5;
  Passing passed_;
};

class AMessage final : public Passed {
 public:
  AMessage() : Passed(1) {}
};

TEST_F(EngineRankTest, PlansBecomeCallsAndTokensSteps) {
  Epoch(1);
  ASSERT_THAT(out_.ready, SizeIs(1));
  EXPECT_THAT(out_.ready[0].active, IsEmpty());
  Plan({7, 8});
  ASSERT_THAT(out_.start, SizeIs(2));
  EXPECT_EQ(out_.start[1].call.id, 8u);
  // The first plan of an epoch is answered at once: two prompts are pending.
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_EQ(reports[0].applied_plan, 1);
  EXPECT_EQ(reports[0].load_tokens, 20);
  EXPECT_EQ(reports[0].prefill->pending_tokens(), 20);
  EXPECT_FALSE(reports[0].group_idle);

  Token(1, 100);
  EXPECT_EQ(Reports().size(), 1u) << "the other request has not begun: nothing else is sure to come";
  Token(2, 200);
  EXPECT_EQ(Reports().size(), 0u) << "the first one decodes, and has no token in this step";
  Token(1, 101);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(101, 200));
  EXPECT_EQ(reports[0].load_tokens, 10 + 1 + 10);
  EXPECT_THAT(reports[0].prefill->prompts, IsEmpty());
  // Both decode now.
  Token(2, 201);
  EXPECT_EQ(Reports().size(), 0u);
  Token(1, 102);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102, 201));
  EXPECT_EQ(reports[0].load_tokens, 10 + 2 + 10 + 1);
}

TEST_F(EngineRankTest, ASecondTokenBeginsAStep) {
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  Reports();
  Token(1, 102);
  Token(1, 103);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102));
}

TEST_F(EngineRankTest, AStepWaitsForItsTokensAShareOfAStep) {
  max_new_tokens_ = 100;
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  for (uint32_t i = 0; i < 60; ++i) {
    now_ += absl::Milliseconds(8);
    rank_.OnTokens(1, {i}, nullptr, now_, out_);
    rank_.OnTokens(2, {i}, nullptr, now_, out_);
  }
  EXPECT_EQ(Reports().size(), 3u + 60);
  now_ += absl::Milliseconds(8);
  Token(1, 102);
  // A quarter of 8 ms, which the mean of steps has come to but for a little.
  Wait(absl::Microseconds(1'900));
  EXPECT_EQ(Reports().size(), 0u);
  Wait(absl::Microseconds(100));
  EXPECT_EQ(Reports().size(), 1u);
}

TEST_F(EngineRankTest, TheEndBelongsToTheStepOfTheLastToken) {
  Epoch(1);
  Plan({7});
  for (uint32_t i = 0; i < 5; ++i) Token(1, 100 + i);
  EXPECT_EQ(Reports().size(), 5u) << "the fifth token is the last that was asked for";
  rank_.OnFinished(1, {EngineFinish::kLength, nullptr, 0}, now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(104));
  ASSERT_THAT(reports[0].finished, SizeIs(1));
  EXPECT_EQ(reports[0].finished[0].reason, FinishReason::kLength);
  EXPECT_TRUE(reports[0].group_idle);
  EXPECT_EQ(rank_.active(), 0);
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(EngineRankTest, AnEarlierEndIsAStepOfItsOwn) {
  Epoch(1);
  Plan({7});
  Token(1, 100);
  rank_.OnFinished(1, {EngineFinish::kStop, nullptr, 0}, now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_EQ(reports[2].finished[0].reason, FinishReason::kStop);
  EXPECT_EQ(reports[2].load_tokens, 11);
  EXPECT_TRUE(reports[2].group_idle);
}

TEST_F(EngineRankTest, ALongPromptIsReportedWhileNothingComes) {
  Epoch(1);
  Plan({7});
  Reports();
  Wait(EngineRank::kQuietStep);
  Wait(EngineRank::kQuietStep);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(2));
  EXPECT_EQ(reports[1].prefill->pending_tokens(), 10);
  EXPECT_EQ(reports[1].local, EngineRank::kQuietStep);
}

TEST_F(EngineRankTest, ARankWhoseDecodesStallIsSilent) {
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Reports();
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
  Wait(absl::Minutes(1));
  EXPECT_EQ(Reports().size(), 0u) << "the group's step timeout has to see it";
}

TEST_F(EngineRankTest, CancelledCallsEndAndAreNotHeardAgain) {
  Epoch(1);
  Plan({7, 8});
  Plan({}, {7});
  EXPECT_THAT(out_.cancel, ElementsAre(1));
  Reports();
  Token(1, 100);
  rank_.OnFinished(1, {EngineFinish::kLength, nullptr, 0}, now_, out_);
  EXPECT_EQ(Reports().size(), 0u);
  // The last one: the report says that the rank is idle.
  Plan({}, {8});
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_TRUE(reports[0].group_idle);
  EXPECT_EQ(reports[0].applied_plan, 3);
}

TEST_F(EngineRankTest, AFailureEndsTheRequestAndALostCallComesAgain) {
  Epoch(1);
  Plan({7, 8, 9});
  Token(1, 100);
  Reports();
  rank_.OnFailed(2, absl::InvalidArgumentError("no"), now_, out_);
  rank_.OnFailed(1, absl::UnavailableError("lost"), now_, out_);
  rank_.OnFailed(3, absl::ResourceExhaustedError("full"), now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(3));
  ASSERT_THAT(reports[0].rejected, SizeIs(1));
  EXPECT_TRUE(absl::IsInvalidArgument(reports[0].rejected[0].status));
  EXPECT_THAT(reports[1].preempted, ElementsAre(7)) << "after its first token";
  ASSERT_THAT(reports[2].rejected, SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(reports[2].rejected[0].status));
}

TEST_F(EngineRankTest, APlacementThatNoEngineCanCarryOutIsRefused) {
  Epoch(1);
  PlanPart plan;
  plan.epoch = 1;
  plan.apply_step = 1;
  std::vector<EngineRank::Placement> placements;
  placements.push_back({7, absl::UnavailableError("sampled with a seed")});
  rank_.OnPlan(plan, std::move(placements), now_, out_);
  EXPECT_THAT(out_.start, IsEmpty());
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(reports[0].rejected[0].status)) << "it ends: nowhere else is better";
}

TEST_F(EngineRankTest, BetweenEpochsTokensWaitForTheFirstPlan) {
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  Token(1, 101);
  Reports();
  Epoch(2, {8});
  EXPECT_THAT(out_.cancel, ElementsAre(2));
  // What had come counts under the old epoch.
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].epoch, 1u);
  ASSERT_THAT(out_.ready.back().active, SizeIs(1));
  EXPECT_EQ(out_.ready.back().active[0].generated_tokens, 2u);
  EXPECT_EQ(out_.ready.back().active[0].kv_tokens, 12);
  Token(1, 102);
  Token(1, 103);
  Wait(absl::Seconds(5));
  EXPECT_EQ(Reports().size(), 0u);
  Plan({});
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].epoch, 2u);
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102, 103));
}

// --- prompts of ranks in a barrier ---

class BarrierRankTest : public EngineRankTest {
 protected:
  static constexpr int64_t kBudget = 8;
  BarrierRankTest() {
    max_new_tokens_ = 1'000;
    rank_ = EngineRank({.slots = 16, .token_budget = kBudget, .barrier = &barrier_, .number = 1});
    Epoch(1);
  }
  // Of the last report, by request.
  std::map<core::RequestId, int64_t> Left() {
    std::map<core::RequestId, int64_t> left;
    for (const core::PendingPrompt& prompt : out_.reports.back().prefill->prompts)
      left[prompt.id] = prompt.tokens;
    return left;
  }
  using Prompts = std::map<core::RequestId, int64_t>;

  BarrierCost barrier_;
};

TEST_F(BarrierRankTest, PromptsAreReckonedInTheirOrderBesideTheDecodes) {
  Plan({1});
  Token(1, 100);
  Token(1, 101);
  Plan({2, 3});
  Token(1, 102);
  EXPECT_EQ(Left(), (Prompts{{2, 10}, {3, 10}})) << "the step that went on has begun without them";
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{2, 3}, {3, 10}})) << "a budget of 8, and one decode";
  Token(1, 104);
  EXPECT_EQ(Left(), (Prompts{{2, 1}, {3, 5}})) << "its first token has not come: one of its prompt is left";
  // With 2's first token its prompt is known to be computed.
  Token(2, 200);
  Token(1, 105);
  EXPECT_EQ(Left(), (Prompts{{3, 1}}));
  EXPECT_EQ(out_.reports.back().prefill->token_budget, kBudget);
}

TEST_F(BarrierRankTest, WhatThePrefixCacheHadIsNoWork) {
  rank_ = EngineRank({.slots = 16, .token_budget = 16, .barrier = &barrier_, .number = 1});
  Epoch(1);
  Plan({1});
  Token(1, 100);
  Token(1, 101);
  Plan({2, 3});
  Token(1, 102);
  // Without the cache a step of 16 would have had 10 of 2's prompt beside the decode, and left 5 for 3.
  rank_.OnCached(2, 7);
  Token(2, 200);
  rank_.OnCached(2, 7);
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{3, 1}}));
  rank_.OnCached(3, 1'000);
  Token(3, 300);
  EXPECT_EQ(out_.reports.back().load_tokens, 10 + 3 + 10 + 10) << "cached tokens are in the KV memory, too";
}

TEST_F(BarrierRankTest, WhatWaitsForASlotIsNotComputed) {
  rank_ = EngineRank({.slots = 2, .token_budget = 100, .barrier = &barrier_, .number = 1});
  Epoch(1);
  Plan({1});
  Token(1, 100);
  Token(1, 101);
  Plan({2, 3});
  Token(1, 102);
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{2, 1}, {3, 10}}));
}

// --- engines that report their steps ---

class FollowingRankTest : public BarrierRankTest {
 protected:
  // A step that has computed so much of prompts (call, tokens left), beside so many decodes.
  void Step(int64_t decodes, int64_t computed, std::vector<std::pair<CallNumber, int64_t>> prompts) {
    EngineStep step;
    step.step = ++steps_;
    step.token_budget = 512;
    step.decodes = step.decode_tokens = decodes;
    step.decode_context = 20 * decodes;
    step.prompt_tokens = computed;
    for (const auto& [call, left] : prompts) step.prompts.push_back({{1, 1, call}, 0, left});
    step.took = absl::Milliseconds(10) + absl::Microseconds(100) * (decodes + computed);
    rank_.OnStep(step, now_, out_);
  }
  void PlanLevel(std::optional<double> level_s) {
    PlanPart plan;
    plan.epoch = epoch_;
    plan.apply_step = ++plan_;
    plan.level_s = level_s;
    rank_.OnPlan(plan, {}, now_, out_);
  }
  // A chunk of so many tokens after so many others, beside a decode, at 1 ns a pair.
  void ChunkStep(int64_t computed, int64_t done) {
    EngineStep step;
    step.step = ++steps_;
    step.token_budget = 512;
    step.decodes = step.decode_tokens = 1;
    step.prompt_tokens = computed;
    BatchLoad load;
    load.AddPrefill(computed, done);
    step.prefill_pairs = load.prefill_pairs;
    step.took = absl::Milliseconds(10) + absl::Microseconds(100) * (1 + computed) +
                absl::Nanoseconds(static_cast<int64_t>(load.prefill_pairs));
    rank_.OnStep(step, now_, out_);
  }
  // Steps of many sizes, from which the cost is fitted.
  void Learn() {
    for (int i = 0; i < 200; ++i) Step(i % 7, i % 5 * 40, {});
    Reports();
  }

  int64_t steps_ = 0;
};

TEST_F(FollowingRankTest, AStepWithoutTokensEndsWithItsReport) {
  Plan({1});
  Reports();
  Step(0, 6, {{1, 4}});
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].prefill->pending_tokens(), 4);
  EXPECT_EQ(reports[0].prefill_tokens, 6);
  EXPECT_EQ(reports[0].prefill->token_budget, 512);
  EXPECT_TRUE(reports[0].prefill->metered);
  Step(0, 4, {{1, 0}});
  EXPECT_THAT(Reports(), IsEmpty()) << "its first token is on its way";
  Token(1, 100);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].prefill_tokens, 4);
  EXPECT_THAT(reports[0].prefill->prompts, IsEmpty());
}

TEST_F(FollowingRankTest, WhatTheEngineFoundInItsCacheIsNotLeft) {
  Plan({1});
  Reports();
  // Of ten tokens one was computed and two are left.
  Step(0, 1, {{1, 2}});
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].prefill->pending_tokens(), 2);
  EXPECT_EQ(reports[0].prefill_tokens, 1);
}

TEST_F(FollowingRankTest, AStepWaitsForTheFirstTokenThatItsReportAnnounces) {
  Plan({1});
  Token(1, 100);
  Token(1, 101);
  Plan({2});
  Step(1, 10, {{2, 0}});
  Reports();
  Token(1, 102);
  EXPECT_THAT(Reports(), IsEmpty());
  Token(2, 200);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].token_ids, ElementsAre(102, 200));
}

TEST_F(FollowingRankTest, TheSameReportAgainIsNoStep) {
  Plan({1});
  Step(0, 6, {{1, 4}});
  Reports();
  --steps_;
  Step(0, 6, {{1, 4}});
  EXPECT_THAT(Reports(), IsEmpty());
}

TEST_F(FollowingRankTest, AnOutputThatComesWholeGetsATokenForEachStep) {
  passed_.on = passed_.whole = true;
  Plan({1});
  Step(0, 10, {{1, 0}});
  Reports();
  for (int i = 0; i < 3; ++i) Step(1, 0, {});
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(3));
  for (const StepReport& report : reports) EXPECT_THAT(report.token_ids, SizeIs(1));
  Wait(absl::Milliseconds(400));
  EXPECT_THAT(Reports(), IsEmpty()) << "only the engine says when a step has ended";
}

TEST_F(FollowingRankTest, ASilentEnginesStepsAreInferredAgain) {
  Plan({1});
  Step(0, 6, {{1, 4}});
  now_ += EngineRank::kFollows;
  Token(1, 100);
  Token(1, 101);
  EXPECT_FALSE(Reports().back().prefill->metered);
  Plan({2});
  Token(1, 102);
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{2, 3}})) << "a budget of 8, and one decode";
}

TEST_F(FollowingRankTest, AttentionOfPromptsIsPartOfTheFittedCost) {
  for (int64_t i = 0; i < 200; ++i) ChunkStep(i % 5 * 40, i % 7 * 5'000);
  ASSERT_TRUE(barrier_.cost().has_value());
  EXPECT_NEAR(barrier_.cost()->k1_s_per_pair, 1e-9, 1e-11);
  EXPECT_NEAR(barrier_.cost()->a_s_per_token, 100e-6, 1e-6);
}

TEST_F(FollowingRankTest, ALevelHoldsForSomeSteps) {
  Plan({1});
  Learn();
  EXPECT_EQ(rank_.Allotment(), std::nullopt);
  PlanLevel(0.030);
  Step(5, 0, {});
  ASSERT_TRUE(rank_.Allotment());
  // 10 ms, and 0.1 ms for each token: 200 tokens, 5 of them decodes.
  EXPECT_NEAR(static_cast<double>(*rank_.Allotment()), 195, 12);
  for (int64_t i = 1; i < EngineRank::kLevelSteps; ++i) Step(0, 1, {{1, 9}});
  EXPECT_EQ(rank_.Allotment(), std::nullopt);
  PlanLevel(0.001);
  EXPECT_EQ(rank_.Allotment(), 0);
  PlanLevel(std::nullopt);
  EXPECT_EQ(rank_.Allotment(), std::nullopt);
}

TEST(EngineRequestNameTest, NamesGoThereAndBack) {
  const EngineRequestName name = {0xabcdef, (MemberId{1} << 62) + 3, 71};
  EXPECT_EQ(EngineRequestName::Parse(name.ToString()), name);
  EXPECT_EQ(EngineRequestName::Parse(name.ToString() + "-8e21fa00"), name) << "vLLM adds letters of its own";
  for (const char* other :
       {"", "bfio-", "bfio-1", "bfio-1-2", "bfio-1-2-", "bfio-x-2-3", "bfio-1-2-x", "cmpl-1-2-3"})
    EXPECT_EQ(EngineRequestName::Parse(other), std::nullopt) << other;
}

// Two ranks: the time of a step is that of the slower one, whichever that is.
TEST(BarrierCostTest, TheSlowestBatchesCostIsFitted) {
  constexpr BatchCost kTrue = {.c_s = 20e-3, .a_s_per_token = 50e-6, .b0_tokens = 0, .k2_s_per_token = 1e-7};
  Rng rng(3);
  BarrierCost barrier;
  for (int step = 0; step < 2'000; ++step) {
    BatchLoad batches[2];
    double seconds = 0;
    for (BatchLoad& batch : batches) {
      for (uint64_t decodes = 1 + rng.Below(20); decodes > 0; --decodes)
        batch.AddDecode(100 + rng.Below(2'000));
      if (rng.Below(4) == 0) batch.AddPrefill(static_cast<int64_t>(rng.Below(1'000)), 0);
      batch.prefill_pairs = 0;
      seconds = std::max(seconds, kTrue.Seconds(batch));
    }
    for (uint64_t rank = 0; rank < 2; ++rank) barrier.Add(rank, batches[rank], absl::Seconds(seconds));
  }
  ASSERT_TRUE(barrier.cost().has_value());
  EXPECT_NEAR(barrier.cost()->c_s, kTrue.c_s, 0.1 * kTrue.c_s);
  EXPECT_NEAR(barrier.cost()->a_s_per_token, kTrue.a_s_per_token, 0.05 * kTrue.a_s_per_token);
  EXPECT_NEAR(barrier.cost()->k2_s_per_token, kTrue.k2_s_per_token, 0.2 * kTrue.k2_s_per_token);
  EXPECT_GT(barrier.version(), 0);
}

// The tokens of some streams come when the step has been reported: two reports, and one step of that length.
TEST_F(BarrierRankTest, LateTokensAreOfTheStepBefore) {
  max_new_tokens_ = 1'000;
  Plan({1, 2});
  constexpr absl::Duration kStep = absl::Milliseconds(100), kLate = absl::Milliseconds(30);
  uint32_t token = 100;
  for (int step = 0; step < 10; ++step) {
    now_ += kStep;
    Token(1, ++token);
    Token(2, ++token);
  }
  Reports();
  const int64_t before = barrier_.version();
  for (int step = 0; step < 64; ++step) {
    now_ += kStep - kLate - EngineRank::kLongestGather;
    Token(1, ++token);
    Wait(kLate);
    EXPECT_EQ(Reports().size(), 1u) << "the others' step goes on";
    Token(2, ++token);
    Wait(EngineRank::kLongestGather);
    EXPECT_EQ(Reports().size(), 1u);
  }
  EXPECT_EQ(barrier_.version(), before + 2) << "64 steps";
}

TEST(BarrierCostTest, ExceptionsDoNotSpoilTheFitAndNewTimesAreLearnt) {
  constexpr BatchCost kTrue = {.c_s = 20e-3, .a_s_per_token = 50e-6, .b0_tokens = 0, .k2_s_per_token = 1e-6};
  Rng rng(3);
  BarrierCost barrier;
  // The more there is in the caches, the more steps look much shorter than they are.
  const auto run = [&](int steps, double times, bool exceptions) {
    for (int step = 0; step < steps; ++step) {
      BatchLoad batch;
      for (uint64_t decodes = 1 + rng.Below(20); decodes > 0; --decodes)
        batch.AddDecode(100 + static_cast<int64_t>(rng.Below(2'000)));
      const bool exception = exceptions && batch.decode_context > 15'000 && rng.Below(4) == 0;
      barrier.Add(1, batch, absl::Seconds(kTrue.Seconds(batch) * times * (exception ? 0.1 : 1)));
    }
  };
  run(1'000, 1, false);
  run(4'000, 1, true);
  EXPECT_GT(barrier.cost()->k2_s_per_token, 0.6 * kTrue.k2_s_per_token);
  run(20'000, 3, false);
  EXPECT_GT(barrier.cost()->c_s, 2.5 * kTrue.c_s);
  EXPECT_GT(barrier.cost()->k2_s_per_token, 2.5 * kTrue.k2_s_per_token);
}

// Ranks are compared by it: those that ask earlier must not see another fit than those that ask later.
TEST(BarrierCostTest, TheCostChangesOnlyWithItsVersion) {
  Rng rng(4);
  BarrierCost barrier;
  std::optional<BatchCost> last;
  int64_t version = barrier.version(), changes = 0;
  for (int step = 0; step < 400; ++step) {
    BatchLoad batch;
    for (uint64_t decodes = 1 + rng.Below(20); decodes > 0; --decodes)
      batch.AddDecode(100 + static_cast<int64_t>(rng.Below(2'000)));
    barrier.Add(1, batch, absl::Milliseconds(20 + static_cast<int64_t>(rng.Below(9))));
    const std::optional<BatchCost> now = barrier.cost();
    const bool same = now.has_value() == last.has_value() &&
                      (!now || (now->c_s == last->c_s && now->k2_s_per_token == last->k2_s_per_token));
    EXPECT_TRUE(same || barrier.version() != version) << step;
    changes += !same;
    last = now;
    version = barrier.version();
  }
  EXPECT_GT(changes, 5);
}

// --- slots ---

// An engine of four slots that serves in order, and a router that fills its slots and what is told beyond;
// each hears of the other half a step late. Slots that stayed empty and the most that waited, over the later
// half of 200 requests of five tokens.
struct Service {
  int empty = 0, waited = 0;
  int32_t extra = 0;
};

Service ServeFive(bool with_credit) {
  constexpr absl::Duration kStep = absl::Milliseconds(20);
  constexpr int32_t kSlots = 4;
  EngineRank rank({.slots = kSlots});
  rank.OnRoundTrip(kStep);
  EngineRank::Output out;
  absl::Time now = absl::UnixEpoch();
  rank.OnEpoch({.epoch = 1}, now, out);
  Service service;
  std::map<CallNumber, int> made;  // in the order in which the engine takes them
  std::vector<EngineRank::StartCall> sent;
  core::RequestId next = 0;
  int64_t plan = 0;
  int32_t placed = 0;
  const auto place = [&] {
    PlanPart part{.epoch = 1, .apply_step = ++plan};
    std::vector<EngineRank::Placement> placements;
    for (; placed < kSlots + (with_credit ? service.extra : 0); ++placed) {
      EngineCall call;
      call.id = ++next;
      call.prompt = Tokens(3, 1);
      call.max_new_tokens = 5;
      placements.push_back({call.id, call});
    }
    rank.OnPlan(part, std::move(placements), now, out);
  };
  place();
  for (int step = 0; next < 200; ++step) {
    // What was sent when the step before the last one had ended is there; what came later comes during this
    // step.
    for (const EngineRank::StartCall& start : sent) made[start.number] = 0;
    sent = std::exchange(out.start, {});
    if (next > 100) {
      service.empty += std::max<int>(0, kSlots - static_cast<int>(made.size()));
      service.waited = std::max(service.waited, static_cast<int>(made.size()) - kSlots);
    }
    now += kStep;
    int running = 0;
    for (auto it = made.begin(); it != made.end() && running < kSlots; ++running) {
      rank.OnTokens(it->first, {7}, nullptr, now, out);
      if (++it->second < 5) {
        ++it;
        continue;
      }
      rank.OnFinished(it->first, {EngineFinish::kLength, nullptr, 0}, now, out);
      it = made.erase(it);
    }
    rank.OnTimer(now + kStep / 2, out);
    for (const StepReport& report : std::exchange(out.reports, {})) {
      placed -= static_cast<int32_t>(report.finished.size());
      service.extra = report.extra_slots;
    }
    place();
  }
  return service;
}

TEST(EngineRankSlotsTest, NoSlotIsEmptyWithCreditForARoundTrip) {
  const Service without = ServeFive(false), with = ServeFive(true);
  EXPECT_GT(without.empty, 10);
  EXPECT_EQ(with.empty, 0);
  // Four slots end 0.8 requests in a step: 1.6 in a round trip and a step.
  EXPECT_EQ(with.extra, 3);
  EXPECT_LE(with.waited, 3);
}

TEST_F(EngineRankTest, WhereFewEndNoneWaitInTheEngine) {
  max_new_tokens_ = 1'000;
  rank_ = EngineRank({.slots = 4});
  Epoch(1);
  Plan({1, 2, 3, 4});
  for (uint32_t i = 0; i < 500; ++i) {
    now_ += absl::Milliseconds(20);
    for (CallNumber call = 1; call <= 4; ++call) Token(call, i);
  }
  EXPECT_EQ(Reports().back().extra_slots, 0);
}

// --- requests that pass ---

TEST_F(EngineRankTest, MessagesGoWithTheirTokensAndWithTheEnd) {
  passed_.on = true;
  Epoch(1);
  Plan({7, 8});
  Reports();
  const PassedPtr first = std::make_shared<AMessage>(), empty = std::make_shared<AMessage>(),
                  last = std::make_shared<AMessage>();
  rank_.OnTokens(2, {}, empty, now_, out_);
  rank_.OnTokens(1, {100}, first, now_, out_);
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(2));
  ASSERT_THAT(reports[0].tokens, SizeIs(1));
  EXPECT_EQ(reports[0].tokens[0].count, 0u) << "a message without tokens";
  EXPECT_THAT(reports[0].messages[0].messages, ElementsAre(empty));
  EXPECT_EQ(reports[1].tokens[0].count, 1u);
  EXPECT_THAT(reports[1].messages[0].messages, ElementsAre(first));
  EXPECT_THAT(reports[1].prefill->prompts, SizeIs(1));
  rank_.OnFinished(1, {EngineFinish::kStop, last, 0}, now_, out_);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].messages[0].messages, ElementsAre(last));
  EXPECT_EQ(reports[0].finished[0].id, 7u);
}

TEST_F(EngineRankTest, AnOutputThatComesWholeGetsATokenAStep) {
  max_new_tokens_ = 100;
  Epoch(1);
  Plan({7});
  passed_ = {.on = true, .whole = true};
  Plan({8});
  Reports();
  for (uint32_t i = 0; i < 10; ++i) {
    now_ += absl::Milliseconds(8);
    Token(1, i);
  }
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(10)) << "it does not hold up the others' steps";
  // Not in the first one, in which its prompt was computed; and a token counts when it is reported.
  EXPECT_EQ(reports[9].load_tokens, 10 + 9 + 10 + 8);
  // 30 tokens in all: 9 of them are known.
  rank_.OnFinished(2, {EngineFinish::kLength, nullptr, 30}, now_, out_);
  now_ += absl::Milliseconds(8);
  Token(1, 10);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  ASSERT_THAT(reports[0].tokens, SizeIs(2));
  EXPECT_EQ(reports[0].tokens[1].count, 30u - 9);
  EXPECT_EQ(reports[0].finished[0].id, 8u);
}

TEST_F(EngineRankTest, WithoutStreamsAStepIsAsLongAsBefore) {
  max_new_tokens_ = 20;
  passed_ = {.on = true, .whole = true};
  Epoch(1);
  Plan({7});
  Reports();
  Wait(absl::Milliseconds(200));
  EXPECT_THAT(Reports(), IsEmpty()) << "nothing is known of steps";
  rank_.OnFinished(1, {EngineFinish::kStop, nullptr, 10}, now_, out_);
  EXPECT_EQ(Reports()[0].tokens[0].count, 10u);
  Plan({8});
  for (int i = 0; i < 30; ++i) Wait(absl::Milliseconds(20));
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(30));
  EXPECT_EQ(reports[10].load_tokens, 10 + 9);
  EXPECT_EQ(reports.back().load_tokens, 10 + 19) << "the last one comes with the end";
  // Less than were estimated.
  rank_.OnFinished(2, {EngineFinish::kStop, nullptr, 3}, now_, out_);
  reports = Reports();
  EXPECT_THAT(reports[0].tokens, IsEmpty());
  ASSERT_THAT(reports[0].finished, SizeIs(1));
  EXPECT_EQ(reports[0].finished[0].generated, 3u);
}

TEST_F(EngineRankTest, APromptWhoseKvComesFromElsewhereIsNoWork) {
  passed_ = {.on = true, .kv_from_elsewhere = true};
  Epoch(1);
  Plan({7});
  const std::vector<StepReport> reports = Reports();
  EXPECT_EQ(reports[0].load_tokens, 10);
  EXPECT_EQ(reports[0].prefill->pending_tokens(), 1);
}

// --- what the engine says ---

TEST_F(EngineRankTest, RequestsOfOtherClientsTakeSlotsAndTokens) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({1, 2});
  Reports();
  rank_.OnLoad(EngineLoad{5, 500}, now_, out_);
  EXPECT_THAT(Reports(), IsEmpty()) << "they may be this router's own that have just ended";
  now_ += absl::Seconds(1);
  rank_.OnLoad(EngineLoad{4, 500}, now_, out_);
  const std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].extra_slots, -2);
  EXPECT_EQ(reports[0].load_tokens, 2 * 10 + 2 * 125);
  EXPECT_EQ(reports[0].engine_load->tokens, 500);
  rank_.OnLoad(std::nullopt, now_, out_);
  EXPECT_EQ(Reports().back().extra_slots, 0) << "an engine that does not answer is not believed for long";
}

TEST_F(EngineRankTest, AnEngineThatReportsTooMuchKeepsASlot) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({1});
  for (int i = 0; i < 2; ++i, now_ += absl::Seconds(1))
    rank_.OnLoad(EngineLoad{int64_t{1} << 40, 1}, now_, out_);
  EXPECT_EQ(Reports().back().extra_slots, -7);
}

// As records of an engine's steps do.
TEST_F(EngineRankTest, OtherClientsAreThoseOfAllReportsOfAWindow) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({1});
  Reports();
  const auto report = [&](int64_t requests) {
    now_ += absl::Milliseconds(100);
    rank_.OnLoad(EngineLoad{requests, 10 * requests}, now_, out_);
  };
  for (const int64_t requests : {4, 4, 4, 4, 4}) report(requests);
  EXPECT_THAT(Reports(), IsEmpty()) << "within a window they may be this router's own that have just ended";
  for (const int64_t requests : {4, 4, 4, 4, 4}) report(requests);
  std::vector<StepReport> reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].extra_slots, -3);
  report(2);
  reports = Reports();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].extra_slots, -1) << "fewer are believed at once";
  for (const int64_t requests : {4, 4, 4, 4, 4}) report(requests);
  EXPECT_THAT(Reports(), IsEmpty()) << "the last window had a report of fewer";
}

// Whatever comes in whatever order: each token is reported once and in order, steps count from 1, loads are
// prompts plus tokens reported before, and what ends is never reported again.
TEST_F(EngineRankTest, RandomLivesAreReportedExactly) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    rank_ = EngineRank();
    out_ = {};
    std::map<CallNumber, core::RequestId> running;
    std::map<core::RequestId, Tokens> sent, got;
    std::map<core::RequestId, uint32_t> generated;  // of the present placement, reported
    core::RequestId next_id = 1;
    Epoch(1);
    size_t started = 0;
    int64_t step = 0;
    uint64_t epoch = 1;
    const auto take = [&] {
      for (; started < out_.start.size(); ++started)
        running[out_.start[started].number] = out_.start[started].call.id;
      for (const StepReport& report : std::exchange(out_.reports, {})) {
        if (report.epoch != epoch) {
          epoch = report.epoch;
          step = 0;
        }
        EXPECT_EQ(report.step, ++step);
        size_t at = 0;
        for (const RequestTokens& tokens : report.tokens) {
          for (uint32_t i = 0; i < tokens.count; ++i) got[tokens.id].push_back(report.token_ids[at++]);
        }
        EXPECT_EQ(at, report.token_ids.size());
        for (const core::PendingPrompt& prompt : report.prefill->prompts)
          EXPECT_FALSE(got.contains(prompt.id));
      }
    };
    for (int i = 0; i < 300; ++i) {
      const double dice = rng.Uniform();
      now_ += absl::Milliseconds(rng.Uniform() * 4);
      auto it = running.begin();
      if (!running.empty())
        std::advance(it, static_cast<int64_t>(rng.Uniform() * static_cast<double>(running.size())));
      if (dice < 0.2) {
        Plan({next_id});
        ++next_id;
      } else if (dice < 0.75 && it != running.end() && sent[it->second].size() < 5) {
        const auto token = static_cast<uint32_t>(1'000 + i);
        sent[it->second].push_back(token);
        Token(it->first, token);
        if (sent[it->second].size() == 5) {
          rank_.OnFinished(it->first, {EngineFinish::kLength, nullptr, 0}, now_, out_);
          running.erase(it);
        }
      } else if (dice < 0.8 && it != running.end()) {
        rank_.OnFinished(it->first, {EngineFinish::kStop, nullptr, 0}, now_, out_);
        running.erase(it);
      } else if (dice < 0.83) {
        take();
        Epoch(epoch_ + 1);
        take();
        Plan({});
      } else {
        rank_.OnTimer(now_, out_);
      }
      take();
    }
    Wait(absl::Seconds(1));
    take();
    std::erase_if(sent, [](const auto& entry) { return entry.second.empty(); });
    EXPECT_EQ(got, sent) << seed;
    EXPECT_EQ(static_cast<size_t>(rank_.active()), running.size());
  }
}

}  // namespace
}  // namespace bfio::router
