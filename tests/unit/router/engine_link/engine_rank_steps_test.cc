// An engine's rank in a barrier, and one whose engine reports its steps: prompts, costs and levels.
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/rng.h"
#include "common/cost/prompt_work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// --- prompts of ranks in a barrier ---

class BarrierRankTest : public EngineRankTest {
 protected:
  static constexpr int64_t kBudget = 8;
  BarrierRankTest() {
    max_new_tokens_ = 1'000;
    rank_ = StreamedRank(OptionsOf(16, kBudget));
    Epoch(1);
  }
  EngineRank::Options OptionsOf(int32_t slots, int64_t token_budget) {
    return {.slots = slots, .token_budget = token_budget, .barrier = &barrier_, .number = 1};
  }
  // A rank on which one request decodes, and two others begin.
  void Decode(int32_t slots, int64_t token_budget) {
    Begin({1}, OptionsOf(slots, token_budget));
    Token(1, 100);
    Token(1, 101);
    Plan({2, 3});
    Token(1, 102);
  }
  // Prompt tokens left by request, from the last report.
  std::map<core::RequestId, int64_t> Left() {
    std::map<core::RequestId, int64_t> left;
    for (const core::PendingPrompt& prompt : out_.reports.back().prefill->prompts)
      left[prompt.id] = prompt.tokens;
    return left;
  }
  using Prompts = std::map<core::RequestId, int64_t>;

  EngineBarrier barrier_;
};

TEST_F(BarrierRankTest, PromptsAreReckonedInTheirOrderBesideTheDecodes) {
  Decode(16, kBudget);
  EXPECT_EQ(Left(), (Prompts{{2, 10}, {3, 10}})) << "the step that went on has begun without them";
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{2, 3}, {3, 10}})) << "a budget of 8, and one decode";
  Token(1, 104);
  EXPECT_EQ(Left(), (Prompts{{2, 1}, {3, 5}})) << "its first token has not come: one of its prompt is left";
  // The first token of request 2 shows that its prompt has been computed.
  Token(2, 200);
  Token(1, 105);
  EXPECT_EQ(Left(), (Prompts{{3, 1}}));
  EXPECT_EQ(out_.reports.back().prefill->token_budget, kBudget);
}

TEST_F(BarrierRankTest, CachedPromptTokensAreNoWork) {
  Decode(16, 16);
  // Without the cache, a step of 16 would have computed 10 of request 2 beside the decode, and left 5 for 3.
  Token(2, 200, 7);
  Token(1, 103, 7);
  EXPECT_EQ(Left(), (Prompts{{3, 1}}));
  Token(3, 300, 1'000);
  EXPECT_EQ(out_.reports.back().load_tokens, 10 + 3 + 10 + 10) << "cached tokens are in the KV memory, too";
}

TEST_F(BarrierRankTest, PromptsThatWaitForASlotAreNotComputed) {
  Decode(2, 100);
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{2, 1}, {3, 10}}));
}

// --- engines that report their steps ---

class FollowingRankTest : public BarrierRankTest {
 protected:
  // A step that computed so many prompt tokens next to so many decodes; `prompts`: (call, tokens left). With
  // pairs: at 1 ns each.
  void Step(int64_t decodes, int64_t computed, std::vector<std::pair<CallNumber, int64_t>> prompts,
            double pairs = 0) {
    EngineStep step = {.step = ++steps_,
                       .decodes = decodes,
                       .decode_tokens = decodes,
                       .decode_context = pairs > 0 ? 0 : 20 * decodes,
                       .prompt_tokens = computed,
                       .prefill_pairs = pairs,
                       .took = absl::Milliseconds(10) + absl::Microseconds(100) * (decodes + computed) +
                               absl::Nanoseconds(static_cast<int64_t>(pairs)),
                       .token_budget = 512};
    for (const auto& [call, left] : prompts) step.prompts.push_back({{1, 1, call}, 0, left});
    rank_.OnStep(step, now_, out_);
  }
  void PlanLevel(std::optional<double> level_s) {
    PlanPart plan;
    plan.epoch = epoch_;
    plan.apply_step = ++plan_;
    plan.level_s = level_s;
    rank_.OnPlan(plan, {}, now_, out_);
  }
  // Reports steps of many sizes, from which the cost is fitted.
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
  StepReport report = Report();
  EXPECT_EQ(report.prefill->pending_tokens(), 4);
  EXPECT_EQ(report.prefill_tokens, 6);
  EXPECT_EQ(report.prefill->token_budget, 512);
  EXPECT_TRUE(report.prefill->metered);
  --steps_;
  Step(0, 6, {{1, 4}});
  EXPECT_THAT(Reports(), IsEmpty()) << "the same report again";
  // Of the other four, one is computed and one is left; the rest was cached.
  Step(0, 1, {{1, 1}});
  report = Report();
  EXPECT_EQ(report.prefill->pending_tokens(), 1);
  EXPECT_EQ(report.prefill_tokens, 1);
  Step(0, 1, {{1, 0}});
  EXPECT_THAT(Reports(), IsEmpty()) << "its first token is on its way";
  Token(1, 100);
  report = Report();
  EXPECT_EQ(report.prefill_tokens, 1);
  EXPECT_THAT(report.prefill->prompts, IsEmpty());
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
  EXPECT_THAT(Report().token_ids, ElementsAre(102, 200));
}

TEST_F(FollowingRankTest, ASilentEnginesStepsAreInferredAgain) {
  Plan({1});
  Step(0, 6, {{1, 4}});
  now_ += StreamedRank::kFollows;
  Token(1, 100);
  Token(1, 101);
  EXPECT_FALSE(Reports().back().prefill->metered);
  Plan({2});
  Token(1, 102);
  Token(1, 103);
  EXPECT_EQ(Left(), (Prompts{{2, 3}})) << "a budget of 8, and one decode";
}

TEST_F(FollowingRankTest, AttentionOfPromptsIsPartOfTheFittedCost) {
  for (int64_t i = 0; i < 200; ++i) {
    BatchLoad chunk;
    chunk.AddPrefill(i % 5 * 40, i % 7 * 5'000);
    Step(1, i % 5 * 40, {}, chunk.prefill_pairs);
  }
  ASSERT_TRUE(barrier_.cost.cost().has_value());
  EXPECT_NEAR(barrier_.cost.cost()->batch.k1_s_per_pair, 1e-9, 1e-11);
  EXPECT_NEAR(barrier_.cost.cost()->batch.a_s_per_token, 100e-6, 1e-6);
}

TEST_F(FollowingRankTest, ALevelHoldsForSomeSteps) {
  Plan({1});
  Learn();
  EXPECT_EQ(rank_.Allotment(), std::nullopt);
  PlanLevel(0.030);
  Step(5, 0, {});
  ASSERT_TRUE(rank_.Allotment());
  // 10 ms, plus 0.1 ms per token: 200 tokens, 5 of them decodes.
  EXPECT_NEAR(static_cast<double>(*rank_.Allotment()), 195, 12);
  for (int64_t i = 1; i < kLevelSteps; ++i) Step(0, 1, {{1, 9}});
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
  // SGLang aborts all requests whose names begin with the given one.
  for (const CallNumber call : {10, 17})
    EXPECT_FALSE(absl::StartsWith((EngineRequestName{1, 2, call}.ToString()),
                                  (EngineRequestName{1, 2, 1}.ToString())));
}

BatchLoad Decodes(Rng& rng) {
  BatchLoad batch;
  for (uint64_t decodes = 1 + rng.Below(20); decodes > 0; --decodes)
    batch.AddDecode(100 + static_cast<int64_t>(rng.Below(2'000)));
  return batch;
}

// With two ranks, the time of a step is that of the slower one, whichever that is.
TEST(BarrierCostTest, TheSlowestBatchesCostIsFitted) {
  constexpr BatchCost kTrue = {.c_s = 20e-3, .a_s_per_token = 50e-6, .b0_tokens = 0, .k2_s_per_token = 1e-7};
  for (const GroupTerms& terms : {GroupTerms(), GroupTerms{.padded = true, .prompt_s = 5e-3}}) {
    SCOPED_TRACE(terms.padded);
    Rng rng(3);
    BarrierCost barrier;
    for (int step = 0; step < 2'000; ++step) {
      BatchLoad batches[3];
      for (BatchLoad& batch : batches) {
        batch = Decodes(rng);
        if (rng.Below(4) == 0) batch.AddPrefill(static_cast<int64_t>(rng.Below(500)), 0);
      }
      const double seconds = GroupCost{kTrue, terms}.Seconds(batches);
      // Now and then the tokens of one rank come late.
      for (uint64_t rank = 0; rank < 3; ++rank)
        barrier.Add(rank, batches[rank], absl::Seconds(seconds * (rng.Below(20) == 0 ? 1.5 : 1)));
    }
    ASSERT_TRUE(barrier.cost().has_value());
    EXPECT_NEAR(barrier.cost()->batch.c_s, kTrue.c_s, 0.1 * kTrue.c_s);
    EXPECT_NEAR(barrier.cost()->batch.a_s_per_token, kTrue.a_s_per_token, 0.05 * kTrue.a_s_per_token);
    EXPECT_NEAR(barrier.cost()->batch.k2_s_per_token, kTrue.k2_s_per_token, 0.2 * kTrue.k2_s_per_token);
    EXPECT_EQ(barrier.cost()->terms.padded, terms.padded);
    EXPECT_NEAR(barrier.cost()->terms.prompt_s, terms.prompt_s, 0.5e-3);
    EXPECT_NEAR(barrier.predicted_ratio(), 1, 0.02);
    EXPECT_GT(barrier.version(), 0);
  }
}

// Tokens of some streams arrive after the step's report: two reports, and one step of that length.
TEST_F(BarrierRankTest, LateTokensBelongToThePreviousStep) {
  Plan({1, 2});
  constexpr absl::Duration kStep = absl::Milliseconds(100), kLate = absl::Milliseconds(30);
  uint32_t token = 100;
  for (int step = 0; step < 10; ++step) {
    now_ += kStep;
    Token(1, ++token);
    Token(2, ++token);
  }
  Reports();
  const int64_t before = barrier_.cost.version();
  for (int step = 0; step < 64; ++step) {
    now_ += kStep - kLate - StreamedRank::kLongestGather;
    Token(1, ++token);
    Wait(kLate);
    EXPECT_EQ(Reports().size(), 1u) << "the others' step goes on";
    Token(2, ++token);
    Wait(StreamedRank::kLongestGather);
    EXPECT_EQ(Reports().size(), 1u);
  }
  EXPECT_EQ(barrier_.cost.version(), before + 2) << "64 steps";
}

TEST(BarrierCostTest, ExceptionsDoNotSpoilTheFitAndNewTimesAreLearnt) {
  constexpr BatchCost kTrue = {.c_s = 20e-3, .a_s_per_token = 50e-6, .b0_tokens = 0, .k2_s_per_token = 1e-6};
  Rng rng(3);
  BarrierCost barrier;
  // The more tokens the caches hold, the more steps appear much shorter than they are.
  const auto run = [&](int steps, double times, bool exceptions) {
    for (int step = 0; step < steps; ++step) {
      const BatchLoad batch = Decodes(rng);
      const bool exception = exceptions && batch.decode_context > 15'000 && rng.Below(4) == 0;
      barrier.Add(1, batch, absl::Seconds(kTrue.Seconds(batch) * times * (exception ? 0.1 : 1)));
    }
  };
  run(1'000, 1, false);
  run(4'000, 1, true);
  EXPECT_GT(barrier.cost()->batch.k2_s_per_token, 0.6 * kTrue.k2_s_per_token);
  run(20'000, 3, false);
  EXPECT_GT(barrier.cost()->batch.c_s, 2.5 * kTrue.c_s);
  EXPECT_GT(barrier.cost()->batch.k2_s_per_token, 2.5 * kTrue.k2_s_per_token);
}

// Ranks are compared by this cost, so all of them must see the same fit, whenever they ask.
TEST(BarrierCostTest, TheCostChangesOnlyWithItsVersion) {
  Rng rng(4);
  BarrierCost barrier;
  std::optional<GroupCost> last;
  int64_t version = barrier.version(), changes = 0;
  for (int step = 0; step < 400; ++step) {
    barrier.Add(1, Decodes(rng), absl::Milliseconds(20 + static_cast<int64_t>(rng.Below(9))));
    const std::optional<GroupCost> now = barrier.cost();
    const bool same = now.has_value() == last.has_value() &&
                      (!now || (now->batch.c_s == last->batch.c_s &&
                                now->batch.k2_s_per_token == last->batch.k2_s_per_token));
    EXPECT_TRUE(same || barrier.version() != version) << step;
    changes += !same;
    last = now;
    version = barrier.version();
  }
  EXPECT_GT(changes, 5);
}

}  // namespace
}  // namespace bfio::router
