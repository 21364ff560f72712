// Engines with prompts and decodes: requests computed by hand, conservation, the engines' rules as their
// sources state them, and the gain of bfio's rules.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tools/sim/rank/serve_group.h"
#include "tools/sim/serve/serve_grid.h"
#include "tools/sim/serve/serve_rule.h"
#include "tools/sim/serve/serve_run.h"

namespace bfio::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// --- capacity ---

Trace TraceOf(std::vector<TraceRequest> requests) {
  return {.source = "test", .requests = std::move(requests)};
}

BatchCost Cost(double k1_s_per_pair = 0) {
  return {.c_s = 0.01,
          .a_s_per_token = 1e-4,
          .b0_tokens = 0,
          .k1_s_per_pair = k1_s_per_pair,
          .k2_s_per_token = 1e-6};
}

TEST(ServeCapacityTest, ByHand) {
  // E[s] = 20, E[o] = 11, E[s^2] = 500, decode context (10 * 20 + 50) = 250 with constant outputs.
  const LengthMoments moments = MomentsOf(TraceOf({{0, 10, 11}, {0, 30, 11}}));
  EXPECT_DOUBLE_EQ(moments.prompt, 20);
  EXPECT_DOUBLE_EQ(moments.output, 11);
  EXPECT_DOUBLE_EQ(moments.prompt_squared, 500);
  EXPECT_DOUBLE_EQ(moments.decode_context, 250);
  const BatchCost cost = Cost(/*k1_s_per_pair=*/1e-6);
  // One slot: a tenth of a request ends per step, so a step has 2 prompt tokens and 3 rows.
  const ServeCapacity one = CapacityOf(moments, cost, 2, 1);
  EXPECT_NEAR(one.step_s, 0.01 + 3e-4 + 0.1 * 250e-6 + 0.1 * 250e-6, 1e-12);
  EXPECT_NEAR(one.requests_per_s, 2 * 0.1 / one.step_s, 1e-9);
  // More slots share the fixed part of a step.
  EXPECT_EQ(CapacityOf(moments, cost, 2, 40).decodes, 40);
  EXPECT_GT(CapacityOf(moments, cost, 2, 40).requests_per_s, 10 * one.requests_per_s);
}

TEST(ServeCapacityTest, AGroupIsFilledWhenItsLongOutputsAre) {
  // One request of 101 tokens reads 100 * 0 + 100^2 / 2 = 5,000 tokens, nine of 11 tokens read 50 each. Half
  // of all 5,450 is read after n decodes with n^2 / 2 + 450 = 2,725.
  std::vector<TraceRequest> requests(9, {0, 0, 11});
  requests.push_back({0, 0, 101});
  const Trace trace = TraceOf(requests);
  EXPECT_EQ(StepsUntilFilled(trace, 0.5), 68);
  EXPECT_EQ(StepsUntilFilled(trace, 1), 100);
}

TEST(ServeFloorTest, ByHand) {
  const LengthMoments moments = MomentsOf(TraceOf({{0, 10, 11}, {0, 30, 11}}));
  const BatchCost cost = Cost(/*k1_s_per_pair=*/1e-6);
  // Per rank 5 decodes, and half a request ends per step: 15 rows, 125 pairs, 125 tokens of context.
  const double step_s = 0.01 + 15e-4 + 250e-6;
  const auto floor = FloorOf(moments, cost, 2, 40, 2 * 0.5 / step_s, 0);
  ASSERT_TRUE(floor.has_value());
  EXPECT_NEAR(floor->tpot_s, step_s, 1e-9);
  EXPECT_NEAR(floor->ttft_s, 1.5 * step_s, 1e-9);
  EXPECT_NEAR(floor->e2e_s, 11.5 * step_s, 1e-8);
  // With noise the slowest rank makes steps longer, so more requests decode at a time.
  const double slowest = MeanOfLargestFactor(2, 0.1);
  const auto noisy = FloorOf(moments, cost, 2, 40, 2 * 0.5 / (slowest * step_s), 0.1);
  ASSERT_TRUE(noisy.has_value());
  EXPECT_NEAR(noisy->tpot_s, slowest * step_s, 1e-9);
  EXPECT_FALSE(FloorOf(moments, cost, 2, 4, 2 * 0.5 / step_s, 0).has_value()) << "4 slots serve less";
}

TEST(ServeFloorTest, TheLargestOfRandomFactors) {
  EXPECT_EQ(MeanOfLargestFactor(8, 0), 1);
  EXPECT_NEAR(MeanOfLargestFactor(1, 0.3), 1, 1e-5);
  // For two ranks: 2 Phi(s / sqrt 2), with the standard deviation s.
  EXPECT_NEAR(MeanOfLargestFactor(2, 0.3), std::erfc(-0.3 / 2), 1e-5);
  // The largest of eight standard normal numbers is 1.42360 on average.
  EXPECT_NEAR((MeanOfLargestFactor(8, 1e-3) - 1) / 1e-3, 1.4236, 1e-3);
}

// --- a group's steps ---

// A step of a group whose ranks meet in a barrier.
const ServeStep& Step(ServeGroup& group, const std::vector<RankOrder>& orders, double now_s) {
  return group.End(0, now_s + group.Begin(0, orders));
}

TEST(ServeGroupTest, ALifeByHand) {
  std::vector<ServeRequest> requests = {{0, 30, 3}, {0, 10, 1}};
  ServeGroup group({.ranks = 2, .slots = 4, .cost = {Cost()}, .longest_output = 3}, &requests);
  group.Bind(0, 0);
  group.Bind(1, 1);
  // 20 of 30 tokens of the first prompt, and all 10 of the other, which also generates its only token.
  double now = Step(group, {{20}, {20}}, 0).seconds;
  EXPECT_NEAR(now, 0.012, 1e-12);
  EXPECT_NEAR(requests[1].end_s, 0.012, 1e-12);
  EXPECT_EQ(requests[0].first_token_s, -1);
  now += Step(group, {{20}, {20}}, now).seconds;
  EXPECT_NEAR(now, 0.012 + 0.011, 1e-12);
  EXPECT_NEAR(requests[0].first_token_s, now, 1e-12);
  // Two decode steps, with contexts of 31 and 32 tokens.
  EXPECT_EQ(group.ranks()[0].decode_context, 31);
  now += Step(group, {{0}, {0}}, now).seconds;
  EXPECT_NEAR(now, 0.023 + 0.0101 + 31e-6, 1e-12);
  EXPECT_EQ(requests[0].end_s, -1);
  now += Step(group, {{0}, {0}}, now).seconds;
  EXPECT_NEAR(requests[0].end_s, now, 1e-12);
  EXPECT_EQ(group.active(), 0);
  EXPECT_EQ(group.ranks()[0].decode_context, 0);
  EXPECT_EQ(Step(group, {{0}, {0}}, now).seconds, 0) << "nothing to do takes no time";
}

TEST(ServeGroupTest, NoMoreRunThanThereAreSlotsAndAStepWithoutDecodesMakesTheirGapLonger) {
  std::vector<ServeRequest> requests = {{0, 5, 100}, {0, 5, 100}, {0, 50, 100}};
  ServeGroup group({.ranks = 1, .slots = 2, .cost = {Cost()}, .longest_output = 100}, &requests);
  group.Bind(0, 0);
  Step(group, {{1000}}, 0);
  for (const int32_t i : {1, 2}) group.Bind(i, 0);
  const double prompts = Step(group, {{1000, false}}, 1).seconds;
  EXPECT_NEAR(prompts, 0.0105, 1e-12) << "the second's prompt tokens alone";
  EXPECT_EQ(group.ranks()[0].decodes, 2);
  EXPECT_EQ(group.ranks()[0].queued(), 1);
  const ServeStep& step = Step(group, {{1000, true}}, 1 + prompts);
  EXPECT_EQ(group.ranks()[0].decodes, 2);
  ASSERT_EQ(step.gaps.size(), 2U);
  EXPECT_GT(step.gaps[0].first, step.gaps[1].first + 0.9) << "the first has had none since its own";
}

TEST(ServeGroupTest, SeveralTokensPerStepHaveAsManyRows) {
  std::vector<ServeRequest> requests = {{0, 5, 8}};
  ServeGroup group({.slots = 1, .longest_output = 8, .drift = Drift::Steady(2.5), .decode_rows = 3},
                   &requests);
  group.Bind(0, 0);
  for (const auto& [tokens, rows] : {std::pair(2, 5), std::pair(3, 3), std::pair(2, 3), std::pair(1, 3)}) {
    EXPECT_EQ(group.active(), 1);
    const ServeStep& step = Step(group, {{5}}, 0);
    EXPECT_EQ(step.tokens, tokens);
    EXPECT_EQ(step.loads[0].tokens, rows);
  }
  EXPECT_EQ(group.ranks()[0].resident_tokens(), 0);
}

// Three steps of two ranks, in each mode of engines with expert parallelism. A is 0.1 ms per row above 4.
TEST(ServeGroupTest, OnePromptOrOneLargeRankSlowsAllRanks) {
  const GroupCost cost = {
      .batch = {.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 4},
      .terms = {.padded = true, .captured_rows = 20, .prompt_s = 0.003, .eager_s = 0.006}};
  const BatchLoad many{.tokens = 10}, few{.tokens = 2}, prompt{.tokens = 15, .prefill_pairs = 50},
      large{.tokens = 21, .prefill_pairs = 200};
  EXPECT_NEAR(cost.Seconds({many, few}), 0.01 + 6e-4, 1e-12);
  EXPECT_NEAR(cost.RankSeconds(few, cost.terms.ModeOf({many, few})), 0.01 + 6e-4, 1e-12) << "padded";
  EXPECT_NEAR(cost.RankSeconds(few, cost.terms.ModeOf({prompt, few})), 0.01 + 11e-4 + 0.003, 1e-12);
  EXPECT_NEAR(cost.RankSeconds(few, cost.terms.ModeOf({large, few})), 0.01 + 0.009, 1e-12)
      << "eager, not padded";
  EXPECT_NEAR(cost.Seconds({large, few}), 0.01 + 17e-4 + 0.009, 1e-12);
  EXPECT_EQ(cost.RankSeconds({}, cost.terms.ModeOf({large, few})), 0) << "no work";
}

// --- engines' rules ---

// Ranks with these decodes and bound prompt tokens.
struct Scene {
  explicit Scene(const std::vector<std::pair<int64_t, std::vector<int64_t>>>& of) {
    for (const auto& [decodes, prompts] : of) {
      ranks.emplace_back().decodes = decodes;
      SetPrompts(ranks.size() - 1, prompts);
    }
  }
  std::vector<ServeRank> ranks;
  std::vector<ServeRequest> requests;
  std::deque<ServeRequestIndex> pool;
  int64_t step = 0;

  void SetPrompts(size_t g, const std::vector<int64_t>& prompts) {
    ranks[g].prompts.clear();
    ranks[g].prompt_tokens = ranks[g].bound_tokens = 0;
    for (const int64_t tokens : prompts) {
      ranks[g].prompts.push_back({static_cast<ServeRequestIndex>(requests.size()), tokens, 0, 0});
      ranks[g].prompt_tokens += tokens;
      ranks[g].bound_tokens += tokens;
      requests.push_back({0, tokens, 10});
    }
  }
  void Arrive(const std::vector<int64_t>& prompts) {
    for (const int64_t tokens : prompts) {
      pool.push_back(static_cast<ServeRequestIndex>(requests.size()));
      requests.push_back({0, tokens, 10});
    }
  }
  ServePlan Ask(ServeRule& rule) {
    ServePlan plan;
    plan.orders.resize(ranks.size());
    rule.Plan({ranks, requests, 64, step++}, pool, plan);
    return plan;
  }
  // The prompt tokens that each rank is to compute.
  std::vector<int64_t> Tokens(ServeRule& rule) {
    std::vector<int64_t> tokens;
    for (const RankOrder& order : Ask(rule).orders) tokens.push_back(order.prompt_tokens);
    return tokens;
  }
  // No rank computes prompts for this number of steps, and then they compute these.
  void ExpectAfter(int steps, ServeRule& rule, const std::vector<int64_t>& tokens, const char* claim = "") {
    for (int i = 0; i < steps; ++i) EXPECT_EQ(Tokens(rule), std::vector<int64_t>(ranks.size())) << claim << i;
    EXPECT_EQ(Tokens(rule), tokens) << claim;
  }
  // The ranks of the prompts that arrive, by request and in the order of binding.
  std::vector<std::pair<ServeRequestIndex, int32_t>> Bindings(const std::string& name, int64_t budget);
};

std::unique_ptr<ServeRule> Rule(const std::string& name, int64_t budget) {
  auto rule = MakeServeRule(name, budget);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return *std::move(rule);
}

std::vector<std::pair<ServeRequestIndex, int32_t>> Scene::Bindings(const std::string& name, int64_t budget) {
  std::vector<std::pair<ServeRequestIndex, int32_t>> bindings;
  for (const ServePlan::Binding& binding : Ask(*Rule(name, budget)).bindings)
    bindings.push_back({binding.request, binding.rank});
  return bindings;
}

TEST(ServeRulesTest, VllmFillsTheBudgetAfterDecodesAndCountsAWaitingRequestAsFourRunning) {
  EXPECT_THAT(Scene({{10, {500}}, {600, {}}}).Tokens(*Rule("vllm", 512)), ElementsAre(502, 0));
  Scene waits({{7, {}}, {0, {100, 100}}});
  waits.Arrive({50});
  EXPECT_THAT(waits.Bindings("vllm", 512), ElementsAre(Pair(2, 0))) << "7 against 8";
}

TEST(ServeRulesTest, TheCadenceLetsPromptsInEverySecondStepUntilTheyPileUp) {
  Scene scene({{10, {100}}, {10, {}}});
  const auto rule = Rule("vllm_cadence", 256);
  scene.ExpectAfter(0, *rule, {246, 246}, "step 0");
  scene.ExpectAfter(0, *rule, {0, 0}, "step 1");
  scene.SetPrompts(0, {5000});
  scene.ExpectAfter(0, *rule, {246, 246}, "step 2 begins it");
  scene.ExpectAfter(0, *rule, {0, 0}, "step 3: a prompt that has begun does not wait");
  scene.SetPrompts(0, {300, 50});
  scene.ExpectAfter(0, *rule, {246, 246}, "step 4 leaves one waiting");
  scene.ExpectAfter(0, *rule, {246, 0}, "so its rank goes on in step 5");
  scene.ranks[1].decodes = 0;
  scene.SetPrompts(0, {});
  scene.ExpectAfter(0, *rule, {246, 256}, "step 6");
  scene.ExpectAfter(0, *rule, {0, 256}, "a rank without decodes has nothing to protect");
}

TEST(ServeRulesTest, SglangsDelayerWaitsForAllRanksThirtyPassesAtMost) {
  Scene scene({{10, {100}}, {10, {}}});
  const auto rule = Rule("sglang_delayer", 256);
  for (int pass = 0; pass < 29; ++pass) EXPECT_THAT(scene.Tokens(*rule), ElementsAre(0, 0)) << pass;
  const ServePlan plan = scene.Ask(*rule);
  EXPECT_EQ(plan.orders[0].prompt_tokens, 100);
  EXPECT_FALSE(plan.orders[0].decodes) << "a batch of prompts alone";
  EXPECT_TRUE(plan.orders[1].decodes);
  scene.SetPrompts(1, {100});
  scene.ExpectAfter(0, *rule, {100, 100}, "all have some: at once");
  scene.ranks[0].decodes = 64;
  scene.ExpectAfter(0, *rule, {0, 0}, "a prompt without a slot does not count");
  scene.ranks[0].decodes = 63;
  scene.ExpectAfter(0, *rule, {100, 100});
}

TEST(ServeRulesTest, SglangsDelayerWaitsForSlotsForAWholeBatch) {
  Scene scene({{10, {20, 20, 20}}, {10, {20}}});
  const auto rule = Rule("sglang_delayer", 256);
  scene.ExpectAfter(0, *rule, {60, 20}, "three begin");
  scene.ranks[1].decodes = 62;
  scene.ExpectAfter(0, *rule, {60, 20}, "two slots are fewer than three: not the first time");
  scene.ExpectAfter(29, *rule, {60, 20}, "then at most until the thirtieth pass");
  scene.ranks[1].decodes = 61;
  scene.ExpectAfter(0, *rule, {60, 20});
}

TEST(ServeRulesTest, SglangsDelayerLetsAPromptThatHasBegunGoOn) {
  Scene scene({{10, {1000, 50}}, {10, {}}});
  scene.ranks[0].begun = 1;
  const auto rule = Rule("sglang_delayer", 256);
  scene.ExpectAfter(0, *rule, {256, 0});
  scene.SetPrompts(0, {200, 50});
  scene.ExpectAfter(0, *rule, {200, 0}, "the next one waits for the other rank");
  scene.SetPrompts(0, {200});
  scene.Arrive({30});
  scene.ExpectAfter(0, *rule, {200, 0}, "its rank has nothing to begin, so the other waits");
}

TEST(ServeRulesTest, AtomHoldsUntilAllRanksTogetherHaveMostOfAStep) {
  Scene scene({{10, {900}}, {10, {}}});
  const auto rule = Rule("atom_coalescer", 1000);
  scene.ExpectAfter(0, *rule, {0, 0}, "one rank has none, however much the other has");
  scene.Arrive({400});
  scene.ExpectAfter(0, *rule, {0, 0}, "0.65 of two steps");
  scene.SetPrompts(1, {500});
  scene.ExpectAfter(0, *rule, {990, 990}, "0.7");
}

TEST(ServeRulesTest, AtomReleasesWhenPromptsStallAndAfterThirtySteps) {
  Scene scene({{10, {100}}, {10, {100}}});
  const auto rule = Rule("atom_coalescer", 1000);
  scene.ExpectAfter(3, *rule, {990, 990}, "3 steps without growth");
  scene.SetPrompts(1, {});
  scene.ExpectAfter(30, *rule, {990, 990}, "30 at most");
  scene.ranks[0].begun = 1;
  scene.ExpectAfter(8, *rule, {990, 990}, "8 where a prompt has begun");
}

TEST(ServeRulesTest, TrtllmWaitsForEveryRankAndThenBatches) {
  Scene scene({{10, {100}}, {10, {100}}});
  const auto rule = Rule("trtllm_adp", 1000);
  scene.ExpectAfter(10, *rule, {990, 990});
  scene.SetPrompts(1, {});
  scene.ExpectAfter(49, *rule, {990, 990}, "every 50th step");
  scene.ranks[1].decodes = 0;
  scene.ExpectAfter(0, *rule, {990, 1000}, "a rank idles: at once");
  Scene full({{64, {100}}, {10, {100}}});
  full.ExpectAfter(49, *Rule("trtllm_adp", 1000), {936, 990}, "a rank has no slot");
  Scene none({{10, {}}, {10, {}}});
  const auto counts = Rule("trtllm_adp", 1000);
  for (int step = 0; step < 40; ++step) none.Ask(*counts);
  none.Arrive({100});
  none.ExpectAfter(9, *counts, {990, 990}, "steps without any prompt count");
}

TEST(ServeRulesTest, TrtllmPlacesTheLongestFirstWhereTheFewestTokensAre) {
  Scene scene({{3, {}}, {3, {}}});
  scene.ranks[0].decode_context = 500;
  scene.ranks[1].decode_context = 100;
  scene.Arrive({50, 300, 200});
  // The 300 go to the rank with 100, the 200 to the one with 400, and the 50 to the first one with 500.
  EXPECT_THAT(scene.Bindings("trtllm_adp", 1000), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(0, 0)));
  Scene capped({{4, {}}, {3, {}}});
  capped.ranks[0].decode_context = 10;
  capped.ranks[1].decode_context = 100'000;
  capped.Arrive({50, 60, 70});
  // 10 requests are at most 5 per rank: the first rank gets only one more, although it has the fewest tokens.
  EXPECT_THAT(capped.Bindings("trtllm_adp", 1000), ElementsAre(Pair(2, 0), Pair(1, 1), Pair(0, 1)));
  Scene full({{62, {100}}, {64, {}}});
  full.Arrive({50, 900});
  EXPECT_THAT(full.Bindings("trtllm_adp", 1000), ElementsAre(Pair(1, 0)));
  EXPECT_EQ(full.pool.size(), 1U) << "the one without a slot";
}

TEST(ServeRulesTest, TpuBatchWaitsForAPromptOnEveryRank) {
  Scene scene({{10, {100}}, {10, {}}});
  const auto rule = Rule("tpu_batch", 1000);
  scene.ExpectAfter(0, *rule, {0, 0});
  scene.Arrive({100});
  scene.ExpectAfter(0, *rule, {990, 990}, "it went to the rank without one");
}

TEST(ServeRulesTest, EqualChunksAreTheMeanRanksWork) {
  EXPECT_THAT(Scene({{10, {900}}, {10, {100}}}).Tokens(*Rule("equal_chunks", 2048)), ElementsAre(500, 500));
}

// --- runs ---

Trace Conversation() {
  return *SampleProfile("conversation", 5000, 7);
}

ServeOptions ServeWith(const std::string& rule, size_t engine = 2) {
  return {.rule = rule,
          .slots = ServeEngines()[engine].slots,
          .load = 0.6,
          .cost = {ServeEngines()[engine].cost}};
}

ServeResult RunOf(const ServeOptions& options, const Trace& trace) {
  auto run = RunServe(options, trace);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

TEST(ServeRunTest, EveryRuleServesAllAndItsBooksAgree) {
  const Trace trace = Conversation();
  for (const ServeRuleInfo& rule : ServeRules()) {
    ServeOptions options = ServeWith(std::string(rule.name));
    options.load = 0.4;
    options.budget = 4096;
    const ServeResult run = RunOf(options, trace);
    EXPECT_GE(run.times.requests, 2800) << rule.name;
    EXPECT_NEAR(static_cast<double>(run.times.requests), run.arrivals_per_s * run.counted_s, 300)
        << rule.name;
    // Little's law: as many tokens are served as are requested.
    EXPECT_NEAR(run.throughput_tokens_per_s / (run.arrivals_per_s * MomentsOf(trace).output), 1, 0.1)
        << rule.name;
    EXPECT_GT(run.times.ttft_s.p50, 0) << rule.name;
    EXPECT_GE(run.times.ttft_s.p99, run.times.ttft_s.p50) << rule.name;
    EXPECT_GE(run.idle_fraction, 0) << rule.name;
    EXPECT_LT(run.idle_fraction, 1) << rule.name;
    EXPECT_NEAR(run.idle_fraction, run.idle_decode_fraction + run.idle_prefill_fraction, 1e-12);
    EXPECT_GE(run.times.e2e_s.mean, run.times.ttft_s.mean) << rule.name;
  }
}

// Prompts cost the group time only if ranks wait for them.
TEST(ServeRunTest, LevelledPromptsLeaveNoRankWaiting) {
  const Trace trace = Conversation();
  ServeOptions today = ServeWith("equal_chunks");
  today.budget = 256;
  const ServeResult levelled = RunOf(ServeWith("bf_io"), trace), equal = RunOf(today, trace);
  EXPECT_LT(levelled.idle_prefill_fraction, 0.01);
  EXPECT_GT(equal.idle_prefill_fraction, 0.02);
  EXPECT_LT(levelled.times.e2e_s.mean, 0.95 * equal.times.e2e_s.mean);
  // Nor beyond capacity, where more prompts wait than slots are free but not all slots are taken.
  ServeOptions beyond = ServeWith("bf_io");
  beyond.closed = true;
  beyond.load = 1.2;
  beyond.lag = 2;
  EXPECT_LT(RunOf(beyond, *SampleProfile("code", 5000, 7)).idle_prefill_fraction, 0.01);
}

TEST(ServeRunTest, PlansThatComeTwoStepsLateCostLittle) {
  const auto cost = [](const Trace& trace, double load) {
    ServeOptions options = ServeWith("bf_io", 0);
    options.load = load;
    const double at_once = RunOf(options, trace).times.e2e_s.mean;
    options.lag = 2;
    return RunOf(options, trace).times.e2e_s.mean / at_once;
  };
  EXPECT_LT(cost(Conversation(), 0.6), 1.05);
  // Prompts that a plan on its way has bound are not overdue for the next plan; otherwise this would be 1.05.
  EXPECT_LT(cost(*SampleProfile("code", 5000, 7), 0.85), 1.03);
}

// Like a pipelined router: reports of step k, a plan for k + 2. Requests that arrive during the step in
// between wait for the part of it that is left when the plan is made.
TEST(ServeRunTest, APipelinedPlanAddsTheDelayOfItsDelivery) {
  const Trace trace = Conversation();
  ServeOptions options = ServeWith("bf_io");
  options.load = 0.2;
  // The delay in steps, compared with plans that are made when their step begins.
  const auto later = [&](double c_s) {
    options.cost.batch.c_s = c_s;
    options.lag = 0;
    const ServeResult at_once = RunOf(options, trace);
    options.lag = 1;
    EXPECT_EQ(RunOf(options, trace).times.e2e_s.mean, at_once.times.e2e_s.mean)
        << "the next step is the first there is";
    options.lag = 2;
    return (RunOf(options, trace).times.ttft_s.p50 - at_once.times.ttft_s.p50) / at_once.step_s_mean;
  };
  EXPECT_NEAR(later(3e-3), 1, 0.2) << "too short to put a plan off";
  EXPECT_LT(later(60e-3), 0.65) << "put off, once plans have been in time for a while";
}

TEST(ServeRunTest, ObjectivesMakeLateFirstTokensRarer) {
  const Trace trace = Conversation();
  ServeOptions options = ServeWith("bf_io");
  options.lag = 2;
  const ServeResult without = RunOf(options, trace);
  EXPECT_EQ(without.ttft_met, std::nullopt);
  EXPECT_FALSE(ServeJson(options, "w", without).contains("ttft_met"));
  options.ttft_objective_s = 0.2;
  const ServeResult with = RunOf(options, trace);
  EXPECT_GT(*with.ttft_met, 0.9);
  EXPECT_LT(with.times.ttft_s.p99, without.times.ttft_s.p99);
  EXPECT_LT(with.times.tpot_s.mean, 1.5 * without.times.tpot_s.mean);
}

TEST(ServeRunTest, AClosedLoopKeepsItsNumberOfRequests) {
  const Trace trace = Conversation();
  ServeOptions options = ServeWith("bf_io");
  options.closed = true;
  options.load = 0.25;
  const ServeResult run = RunOf(options, trace);
  // Little's law in tokens: requests in the system over their mean time, times tokens per request.
  const double population = 0.25 * static_cast<double>(options.slots) * options.workers;
  const double tokens = run.throughput_tokens_per_s * run.times.e2e_s.mean / population;
  EXPECT_NEAR(tokens / MomentsOf(trace).output, 1, 0.1);
}

// A grid of one load of these profiles on one engine, with one seed.
ServeGridOptions GridOf(const std::vector<const char*>& profiles, size_t engine, double load,
                        int32_t ranks = 8) {
  ServeGridOptions grid;
  for (const char* profile : profiles) {
    const bool short_one = std::string(profile) == "short";
    grid.workloads.push_back(
        {profile, short_one ? TraceOf({{0, 100, 10}}) : *SampleProfile(profile, 5000, 7)});
  }
  grid.engines = {ServeEngines()[engine]};
  grid.loads = {load};
  grid.groups = {ranks};
  grid.seeds = 1;
  return grid;
}
ServeGridOptions Against(ServeGridOptions grid, const char* candidate, const char* other,
                         std::vector<int64_t> budgets) {
  grid.run.rule = candidate;
  grid.against = other;
  grid.budgets = std::move(budgets);
  return grid;
}

std::vector<ServeCell> CellsOf(const ServeGridOptions& grid, absl::Status* status = nullptr) {
  std::vector<ServeCell> cells;
  const absl::Status got = RunServeGrid(
      grid, [&](const ServeCell& cell) { cells.push_back(cell); }, [] { return true; });
  if (status != nullptr) *status = got;
  EXPECT_TRUE(status != nullptr || got.ok()) << got;
  return cells;
}

// For no workload is the best rule with its best budget far better in mean end-to-end time.
TEST(ServeGridTest, OneSettingAgainstTheBestInHindsight) {
  const std::vector<ServeCell> cells = CellsOf(GridOf({"conversation", "burstgpt", "long_prompts"}, 2, 0.7));
  double sum = 0;
  for (const ServeCell& cell : cells) {
    const double ratio = cell.candidate.e2e_s / cell.best.e2e_s;
    EXPECT_LT(ratio, 1.02) << cell.workload << " " << cell.load << " " << cell.best.rule;
    sum += ratio;
  }
  ASSERT_EQ(cells.size(), 3U);
  EXPECT_LT(sum / 3, 0.9);
}

// Engines with the same budget get their prompts in waves. Where prompts nearly use up the budget, long ones
// would starve if prompts were ordered by age over length.
TEST(ServeGridTest, ReleaseAloneGainsAtEqualBudgetsAndKeepsUpWithSmallOnes) {
  const std::vector<ServeCell> equal =
      CellsOf(Against(GridOf({"conversation"}, 2, 0.6), "bf_io_release", "vllm", {256, 512}));
  ASSERT_EQ(equal.size(), 2U);
  for (const ServeCell& cell : equal) {
    EXPECT_EQ(cell.budget, &cell == &equal[0] ? 256 : 512);
    EXPECT_EQ(cell.best.rule, "vllm");
    EXPECT_EQ(cell.best.budget, cell.budget);
    EXPECT_LT(cell.candidate.e2e_s, (cell.budget == 256 ? 1.0 : 0.84) * cell.best.e2e_s);
  }
  const std::vector<ServeCell> small =
      CellsOf(Against(GridOf({"conversation", "long_prompts"}, 1, 0.7), "bf_io_release", "vllm", {256}));
  ASSERT_EQ(small.size(), 2U);
  for (const ServeCell& cell : small) EXPECT_LT(cell.candidate.e2e_s, cell.best.e2e_s) << cell.workload;
}

// With noise, so that the fit differs from the true cost.
TEST(ServeRunTest, AFittedCostIsAsGoodAsTheTrueOne) {
  const Trace trace = *SampleProfile("long_prompts", 5000, 7);
  ServeOptions options = ServeWith("bf_io", 1);
  options.load = 0.5;
  options.lag = 2;
  options.jitter = 0.05;
  const ServeResult exact = RunOf(options, trace);
  options.fitted_cost = true;
  EXPECT_NEAR(RunOf(options, trace).times.e2e_s.mean / exact.times.e2e_s.mean, 1, 0.02);
}

TEST(ServeGridTest, ARuleThatKeepsUpWithNoBudgetIsAnErrorAfterTheLastCell) {
  ServeGridOptions grid = GridOf({"short"}, 2, 0.5, 2);
  grid.loads = {0.5, 0.6};
  grid.workloads[0].trace = TraceOf({{0, 4, 100}});
  // More than 8 requests decode, so the engines' rules compute no prompt tokens; equal_chunks computes 16.
  grid.budgets = {8};
  absl::Status status;
  const std::vector<ServeCell> cells = CellsOf(grid, &status);
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[0].best.rule, "equal_chunks");
  EXPECT_THAT(cells[0].cannot_run, ::testing::Contains("vllm"));
  EXPECT_THAT(cells[0].cannot_run, ::testing::Not(::testing::Contains("equal_chunks")));
  EXPECT_THAT(ServeCellJson(cells[0])["cannot_run"].dump(), HasSubstr("vllm"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* load : {"0.5", "0.6"})
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("vllm in short on 8b with 2 ranks at load ", load)));
}

TEST(ServeGridTest, EveryCellHasAFloorBelowItsRunsExceptInAClosedLoop) {
  ServeGridOptions grid = GridOf({"short"}, 2, 0.5, 2);
  grid.budgets = {2048};
  const std::vector<ServeCell> cells = CellsOf(grid);
  ASSERT_EQ(cells.size(), 1U);
  ASSERT_TRUE(cells[0].floor.has_value());
  EXPECT_LT(cells[0].floor->e2e_s, std::min(cells[0].best.e2e_s, cells[0].candidate.e2e_s));
  EXPECT_GT(cells[0].floor->e2e_s, cells[0].best.e2e_s / 3);
  EXPECT_EQ(ServeCellJson(cells[0])["floor"]["e2e_s"], cells[0].floor->e2e_s);
  grid.run.closed = true;
  for (const ServeCell& cell : CellsOf(grid)) EXPECT_FALSE(cell.floor.has_value());
}

TEST(ServeGridTest, ABudgetTooSmallForTheOtherRuleGivesNoCell) {
  const ServeGridOptions grid = GridOf({"short"}, 2, 0.5, 2);
  const std::vector<ServeCell> cells = CellsOf(Against(grid, "bf_io_release", "vllm", {1, 2048}));
  ASSERT_EQ(cells.size(), 1U);
  EXPECT_EQ(cells[0].budget, 2048);
  absl::Status none;
  EXPECT_TRUE(CellsOf(Against(grid, "bf_io_release", "vllm", {1}), &none).empty());
  EXPECT_THAT(std::string(none.message()), HasSubstr("vllm in short on 8b"));
}

}  // namespace
}  // namespace bfio::sim
