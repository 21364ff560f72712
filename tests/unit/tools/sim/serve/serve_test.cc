// Engines with prompts and decodes: requests computed by hand, conservation, the engines' rules as their
// sources state them, and the gain of bfio's rules.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tools/sim/serve/serve_grid.h"
#include "tools/sim/serve/serve_group.h"
#include "tools/sim/serve/serve_rule.h"
#include "tools/sim/serve/serve_run.h"
#include "tools/sim/serve/serve_workload.h"

namespace bfio::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

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

TEST(ServeGroupTest, ALifeByHand) {
  std::vector<ServeRequest> requests = {{0, 30, 3}, {0, 10, 1}};
  ServeGroup group({.ranks = 2, .slots = 4, .cost = Cost(), .longest_output = 3}, &requests);
  group.Bind(0, 0, 0);
  group.Bind(1, 1, 0);
  // 20 of 30 tokens of the first prompt, and all 10 of the other, which also generates its only token.
  double now = group.Step({{20}, {20}}, 0).seconds;
  EXPECT_NEAR(now, 0.012, 1e-12);
  EXPECT_NEAR(requests[1].end_s, 0.012, 1e-12);
  EXPECT_EQ(requests[0].first_token_s, -1);
  now += group.Step({{20}, {20}}, now).seconds;
  EXPECT_NEAR(now, 0.012 + 0.011, 1e-12);
  EXPECT_NEAR(requests[0].first_token_s, now, 1e-12);
  // Two decode steps, with contexts of 31 and 32 tokens.
  EXPECT_EQ(group.ranks()[0].decode_context, 31);
  now += group.Step({{0}, {0}}, now).seconds;
  EXPECT_NEAR(now, 0.023 + 0.0101 + 31e-6, 1e-12);
  EXPECT_EQ(requests[0].end_s, -1);
  now += group.Step({{0}, {0}}, now).seconds;
  EXPECT_NEAR(requests[0].end_s, now, 1e-12);
  EXPECT_EQ(group.active(), 0);
  EXPECT_EQ(group.ranks()[0].decode_context, 0);
  EXPECT_EQ(group.Step({{0}, {0}}, now).seconds, 0) << "nothing to do takes no time";
}

TEST(ServeGroupTest, NoMoreRunThanThereAreSlots) {
  std::vector<ServeRequest> requests(3, {0, 5, 100});
  ServeGroup group({.ranks = 1, .slots = 2, .cost = Cost(), .longest_output = 100}, &requests);
  for (int32_t i = 0; i < 3; ++i) group.Bind(i, 0, 0);
  group.Step({{1000}}, 0);
  EXPECT_EQ(group.ranks()[0].decodes, 2);
  group.Step({{1000}}, 1);
  EXPECT_EQ(group.ranks()[0].decodes, 2);
  EXPECT_EQ(group.ranks()[0].queued(), 1);
}

TEST(ServeGroupTest, AStepWithoutDecodesMakesTheirGapLonger) {
  std::vector<ServeRequest> requests = {{0, 5, 10}, {0, 50, 10}};
  ServeGroup group({.ranks = 1, .slots = 4, .cost = Cost(), .longest_output = 10}, &requests);
  group.Bind(0, 0, 0);
  group.Step({{100}}, 0);
  group.Bind(1, 0, 1);
  const double prompts = group.Step({{50, false}}, 1).seconds;
  EXPECT_NEAR(prompts, 0.015, 1e-12) << "prompt tokens alone";
  const ServeStep& step = group.Step({{0, true}}, 1 + prompts);
  ASSERT_EQ(step.gaps.size(), 2U);
  EXPECT_GT(step.gaps[0].first, step.gaps[1].first + 0.9) << "the first has had none since its own";
}

// --- engines' rules ---

// Ranks with these decodes and bound prompt tokens.
struct Scene {
  explicit Scene(const std::vector<std::pair<int64_t, std::vector<int64_t>>>& of) {
    for (const auto& [decodes, prompts] : of) AddRank(decodes, prompts);
  }
  std::vector<ServeRank> ranks;
  std::vector<ServeRequest> requests;
  BatchCost cost = Cost();
  std::deque<ServeRequestIndex> pool;
  int64_t step = 0;

  void AddRank(int64_t decodes, const std::vector<int64_t>& prompts) {
    ServeRank& rank = ranks.emplace_back();
    rank.decodes = decodes;
    for (const int64_t tokens : prompts) {
      rank.prompts.push_back({static_cast<ServeRequestIndex>(requests.size()), tokens, 0, 0});
      rank.prompt_tokens += tokens;
      requests.push_back({0, tokens, 10});
    }
  }
  void SetPrompt(size_t rank, int64_t tokens) {
    ranks[rank].prompts[0].left = ranks[rank].prompt_tokens = tokens;
  }
  void Arrive(int64_t tokens) {
    pool.push_back(static_cast<ServeRequestIndex>(requests.size()));
    requests.push_back({0, tokens, 10});
  }
  ServePlan Ask(ServeRule& rule) {
    ServePlan plan;
    plan.orders.resize(ranks.size());
    rule.Plan({ranks, requests, cost, 64, step++, 1.0, 1.0, {}}, pool, plan);
    return plan;
  }
};

std::unique_ptr<ServeRule> Rule(const std::string& name, int64_t budget) {
  auto rule = MakeServeRule(name, budget);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return *std::move(rule);
}

std::vector<int64_t> PlannedTokens(const ServePlan& plan) {
  std::vector<int64_t> tokens;
  for (const RankOrder& order : plan.orders) tokens.push_back(order.prompt_tokens);
  return tokens;
}

auto BoundTo(ServeRequestIndex request, int32_t rank) {
  return AllOf(Field(&ServePlan::Binding::request, request), Field(&ServePlan::Binding::rank, rank));
}

TEST(ServeRulesTest, VllmFillsTheBudgetAfterDecodes) {
  Scene scene({{10, {500}}, {600, {}}});
  EXPECT_THAT(PlannedTokens(scene.Ask(*Rule("vllm", 512))), ElementsAre(502, 0));
}

TEST(ServeRulesTest, VllmCountsAWaitingRequestAsFourRunning) {
  Scene scene({{7, {}}, {0, {100, 100}}});
  scene.Arrive(50);
  EXPECT_EQ(scene.Ask(*Rule("vllm", 512)).bindings[0].rank, 0) << "7 against 8";
}

TEST(ServeRulesTest, TheCadenceLetsPromptsInEverySecondStepUntilTheyPileUp) {
  Scene scene({{10, {100}}, {10, {}}});
  const auto rule = Rule("vllm_cadence", 256);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(246, 246)) << "step 0";
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << "step 1";
  scene.SetPrompt(0, 5000);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(246, 246)) << "step 2 cannot take them all";
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(246, 246)) << "so step 3 goes on";
}

TEST(ServeRulesTest, SglangsDelayerWaitsForAllRanksThirtyPassesAtMost) {
  Scene scene({{10, {100}}, {10, {}}});
  const auto rule = Rule("sglang_delayer", 256);
  for (int pass = 0; pass < 29; ++pass)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << pass;
  const ServePlan plan = scene.Ask(*rule);
  EXPECT_THAT(PlannedTokens(plan), ElementsAre(100, 0));
  EXPECT_FALSE(plan.orders[0].decodes) << "a batch of prompts alone";
  EXPECT_TRUE(plan.orders[1].decodes);
  scene.AddRank(10, {100});
  scene.ranks[1].prompts = scene.ranks[2].prompts;
  scene.ranks[1].prompt_tokens = 100;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(100, 100, 100)) << "all have some: at once";
}

TEST(ServeRulesTest, SglangsDelayerLetsAPromptThatHasBegunGoOn) {
  Scene scene({{10, {1000, 50}}, {10, {}}});
  scene.ranks[0].begun = 1;
  const auto rule = Rule("sglang_delayer", 256);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(256, 0));
  scene.SetPrompt(0, 200);
  scene.ranks[0].prompt_tokens = 250;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(200, 0))
      << "the next one waits for the other rank";
  scene.ranks[0].prompts.pop_back();
  scene.ranks[0].prompt_tokens = 200;
  scene.Arrive(30);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(200, 0))
      << "its rank has nothing to begin, so the other waits";
}

TEST(ServeRulesTest, SglangsDelayerCountsNoPromptThatHasNoSlot) {
  Scene scene({{64, {100}}, {10, {100}}});
  const auto rule = Rule("sglang_delayer", 256);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0));
  scene.ranks[0].decodes = 63;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(100, 100));
}

TEST(ServeRulesTest, AtomHoldsUntilAllRanksTogetherHaveMostOfAStep) {
  Scene scene({{10, {900}}, {10, {}}});
  const auto rule = Rule("atom_coalescer", 1000);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0))
      << "one rank has none, however much the other has";
  scene.Arrive(400);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << "0.65 of two steps";
  scene.AddRank(10, {500});
  std::swap(scene.ranks[1], scene.ranks[2]);
  scene.ranks.pop_back();
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990)) << "0.7";
}

TEST(ServeRulesTest, AtomReleasesWhenPromptsStallAndAfterThirtySteps) {
  Scene scene({{10, {100}}, {10, {100}}});
  const auto rule = Rule("atom_coalescer", 1000);
  for (int tick = 0; tick < 3; ++tick)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << tick;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990)) << "3 steps without growth";
  scene.ranks[1].prompts.clear();
  scene.ranks[1].prompt_tokens = 0;
  for (int tick = 0; tick < 30; ++tick)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << tick;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990)) << "30 at most";
  scene.ranks[0].begun = 1;
  for (int tick = 0; tick < 8; ++tick)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << tick;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990)) << "8 where a prompt has begun";
}

TEST(ServeRulesTest, TrtllmWaitsForEveryRankAndThenBatches) {
  Scene scene({{10, {100}}, {10, {100}}});
  const auto rule = Rule("trtllm_adp", 1000);
  for (int step = 0; step < 10; ++step)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << step;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990));
  scene.ranks[1].prompts.clear();
  scene.ranks[1].prompt_tokens = 0;
  for (int step = 0; step < 49; ++step)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << step;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990)) << "every 50th step";
  scene.ranks[1].decodes = 0;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 1000)) << "a rank idles: at once";
}

TEST(ServeRulesTest, TrtllmCountsStepsWithoutAnyPrompt) {
  Scene scene({{10, {}}, {10, {}}});
  const auto rule = Rule("trtllm_adp", 1000);
  for (int step = 0; step < 40; ++step) scene.Ask(*rule);
  scene.Arrive(100);
  for (int step = 40; step < 49; ++step)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << step;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990));
}

TEST(ServeRulesTest, TrtllmWaitsWhereARankHasNoSlot) {
  Scene scene({{64, {100}}, {10, {100}}});
  const auto rule = Rule("trtllm_adp", 1000);
  for (int step = 0; step < 49; ++step)
    EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0)) << step;
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(936, 990));
}

TEST(ServeRulesTest, TrtllmPlacesTheLongestFirstWhereTheFewestTokensAre) {
  Scene scene({{3, {}}, {3, {}}});
  scene.ranks[0].decode_context = 500;
  scene.ranks[1].decode_context = 100;
  for (const int64_t tokens : {50, 300, 200}) scene.Arrive(tokens);
  const ServePlan plan = scene.Ask(*Rule("trtllm_adp", 1000));
  // The 300 go to the rank with 100, the 200 to the one with 400, and the 50 to the first one with 500.
  EXPECT_THAT(plan.bindings, ElementsAre(BoundTo(1, 1), BoundTo(2, 1), BoundTo(0, 0)));
}

TEST(ServeRulesTest, TrtllmGivesNoRankMoreThanItsShareOfRequests) {
  Scene scene({{4, {}}, {3, {}}});
  scene.ranks[0].decode_context = 10;
  scene.ranks[1].decode_context = 100'000;
  for (const int64_t tokens : {50, 60, 70}) scene.Arrive(tokens);
  // 10 requests are at most 5 per rank: the first rank gets only one more, although it has the fewest tokens.
  EXPECT_THAT(scene.Ask(*Rule("trtllm_adp", 1000)).bindings,
              ElementsAre(BoundTo(2, 0), BoundTo(1, 1), BoundTo(0, 1)));
}

TEST(ServeRulesTest, TrtllmLeavesThoseWithoutASlotInThePool) {
  Scene scene({{62, {100}}, {64, {}}});
  for (const int64_t tokens : {50, 900}) scene.Arrive(tokens);
  EXPECT_THAT(scene.Ask(*Rule("trtllm_adp", 1000)).bindings, ElementsAre(BoundTo(1, 0)));
  EXPECT_EQ(scene.pool.size(), 1U);
}

TEST(ServeRulesTest, TpuBatchWaitsForAPromptOnEveryRank) {
  Scene scene({{10, {100}}, {10, {}}});
  const auto rule = Rule("tpu_batch", 1000);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(0, 0));
  scene.Arrive(100);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(990, 990)) << "it went to the rank without one";
}

TEST(ServeRulesTest, EqualChunksAreTheMeanRanksWork) {
  Scene scene({{10, {900}}, {10, {100}}});
  EXPECT_THAT(PlannedTokens(scene.Ask(*Rule("equal_chunks", 2048))), ElementsAre(500, 500));
}

TEST(ServeRulesTest, ReleasedPromptsFillTheEnginesBudget) {
  Scene scene({{10, {500}}, {600, {}}});
  const auto rule = Rule("bf_io_release", 512);
  EXPECT_THAT(PlannedTokens(scene.Ask(*rule)), ElementsAre(502, 0)) << "vLLM's step";
  scene.ranks[1].decodes = 10;
  scene.Arrive(400);
  const ServePlan plan = scene.Ask(*rule);
  ASSERT_EQ(plan.bindings.size(), 1U) << "beside the other rank's prompt";
  EXPECT_EQ(plan.bindings[0].rank, 1);
  EXPECT_TRUE(scene.pool.empty());
}

TEST(ServeRulesTest, AnUnknownNameListsThem) {
  EXPECT_THAT(std::string(MakeServeRule("fifo", 1).status().message()), HasSubstr("bf_io"));
}

// --- runs ---

Trace Conversation() {
  return *SampleProfile("conversation", 5000, 7);
}

ServeOptions ServeWith(const std::string& rule, size_t engine = 2) {
  return {
      .rule = rule, .slots = ServeEngines()[engine].slots, .load = 0.6, .cost = ServeEngines()[engine].cost};
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
    EXPECT_GE(run.requests, 2800) << rule.name;
    EXPECT_NEAR(static_cast<double>(run.requests), run.arrivals_per_s * run.counted_s, 300) << rule.name;
    // Little's law: as many tokens are served as are requested.
    EXPECT_NEAR(run.throughput_tokens_per_s / (run.arrivals_per_s * MomentsOf(trace).output), 1, 0.1)
        << rule.name;
    EXPECT_GT(run.ttft_s.p50, 0) << rule.name;
    EXPECT_GE(run.ttft_s.p99, run.ttft_s.p50) << rule.name;
    EXPECT_GE(run.idle_fraction, 0) << rule.name;
    EXPECT_LT(run.idle_fraction, 1) << rule.name;
    EXPECT_NEAR(run.idle_fraction, run.idle_decode_fraction + run.idle_prefill_fraction, 1e-12);
    EXPECT_GE(run.e2e_s.mean, run.ttft_s.mean) << rule.name;
  }
}

TEST(ServeRunTest, TheSameForTheSameSeed) {
  ServeOptions options = ServeWith("bf_io");
  options.lag = 2;
  options.jitter = 0.05;
  const Trace trace = Conversation();
  const auto text = [&] { return ServeJson(options, "w", RunOf(options, trace)).dump(); };
  const std::string first = text();
  EXPECT_EQ(first, text());
  options.seed = 2;
  EXPECT_NE(first, text());
}

TEST(ServeRunTest, MoreThanAGroupCanServeIsAnError) {
  ServeOptions options = ServeWith("vllm");
  options.budget = 64;
  options.load = 5;
  EXPECT_EQ(RunServe(options, Conversation()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ServeRunTest, BadOptionsAreRefusedByName) {
  ServeOptions options = ServeWith("bf_io");
  options.load = 0;
  EXPECT_THAT(std::string(RunServe(options, Conversation()).status().message()), HasSubstr("--load"));
  EXPECT_EQ(RunServe(ServeWith("bf_io"), Trace()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(RunServe(ServeWith("none"), Conversation()).status().message()), HasSubstr("none"));
}

// Prompts cost the group time only if ranks wait for them.
TEST(ServeRunTest, LevelledPromptsLeaveNoRankWaiting) {
  const Trace trace = Conversation();
  ServeOptions today = ServeWith("equal_chunks");
  today.budget = 256;
  const ServeResult levelled = RunOf(ServeWith("bf_io"), trace), equal = RunOf(today, trace);
  EXPECT_LT(levelled.idle_prefill_fraction, 0.01);
  EXPECT_GT(equal.idle_prefill_fraction, 0.02);
  EXPECT_LT(levelled.e2e_s.mean, 0.95 * equal.e2e_s.mean);
}

TEST(ServeRunTest, PlansThatComeTwoStepsLateCostLittle) {
  const auto cost = [](const Trace& trace, double load) {
    ServeOptions options = ServeWith("bf_io", 0);
    options.load = load;
    const double at_once = RunOf(options, trace).e2e_s.mean;
    options.lag = 2;
    return RunOf(options, trace).e2e_s.mean / at_once;
  };
  EXPECT_LT(cost(Conversation(), 0.6), 1.05);
  // Prompts that a plan on its way has bound are not overdue for the next plan; otherwise this would be 1.05.
  EXPECT_LT(cost(*SampleProfile("code", 5000, 7), 0.85), 1.03);
}

// Like a pipelined router: reports of step k, a plan for k + 2. Requests that arrive during the step in
// between wait for the part of it that is left when the plan is made.
TEST(ServeRunTest, APipelinedPlanAddsTheDelayOfItsDelivery) {
  const Trace trace = Conversation();
  ServeOptions options = ServeWith("vllm");
  options.budget = 8192;
  options.load = 0.2;
  // The delay in steps, compared with plans that are made when their step begins.
  const auto later = [&](double c_s) {
    options.cost.c_s = c_s;
    options.lag = 0;
    const ServeResult at_once = RunOf(options, trace);
    options.lag = 1;
    EXPECT_EQ(RunOf(options, trace).e2e_s.mean, at_once.e2e_s.mean) << "the next step is the first there is";
    options.lag = 2;
    return (RunOf(options, trace).ttft_s.p50 - at_once.ttft_s.p50) / at_once.step_s_mean;
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
  EXPECT_LT(with.ttft_s.p99, without.ttft_s.p99);
  EXPECT_LT(with.tpot_s.mean, 1.5 * without.tpot_s.mean);
  options.ttft_objective_s = -1;
  EXPECT_THAT(std::string(RunServe(options, trace).status().message()), HasSubstr("--ttft_objective"));
}

TEST(ServeRunTest, AClosedLoopKeepsItsNumberOfRequests) {
  const Trace trace = Conversation();
  ServeOptions options = ServeWith("bf_io");
  options.closed = true;
  options.load = 0.25;
  const ServeResult run = RunOf(options, trace);
  // Little's law in tokens: requests in the system over their mean time, times tokens per request.
  const double population = 0.25 * static_cast<double>(options.slots) * options.workers;
  const double tokens = run.throughput_tokens_per_s * run.e2e_s.mean / population;
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

bool GoesOn() {
  return true;
}

// For no workload is the best rule with its best budget far better in mean end-to-end time.
TEST(ServeGridTest, OneSettingAgainstTheBestInHindsight) {
  const ServeGridOptions grid = GridOf({"conversation", "burstgpt", "long_prompts"}, 2, 0.7);
  double sum = 0;
  int cells = 0;
  const auto judge = [&](const ServeCell& cell) {
    const double ratio = cell.candidate.e2e_s / cell.best.e2e_s;
    EXPECT_LT(ratio, 1.02) << cell.workload << " " << cell.load << " " << cell.best.rule;
    sum += ratio;
    ++cells;
  };
  ASSERT_TRUE(RunServeGrid(grid, judge, GoesOn).ok());
  EXPECT_EQ(cells, 3);
  EXPECT_LT(sum / cells, 0.9);
}

// Engines with the same budget get their prompts in waves.
TEST(ServeGridTest, ReleaseAloneGainsAtEqualBudgets) {
  ServeGridOptions grid = GridOf({"conversation"}, 2, 0.6);
  grid.candidate = "bf_io_release";
  grid.against = "vllm";
  grid.budgets = {256, 512};
  std::vector<int64_t> budgets;
  const auto judge = [&](const ServeCell& cell) {
    EXPECT_EQ(cell.best.rule, "vllm");
    EXPECT_EQ(cell.best.budget, cell.budget);
    EXPECT_LT(cell.candidate.e2e_s, (cell.budget == 256 ? 1.0 : 0.84) * cell.best.e2e_s);
    budgets.push_back(cell.budget);
  };
  const absl::Status status = RunServeGrid(grid, judge, GoesOn);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(budgets, ElementsAre(256, 512));
}

// Prompts nearly use up these budgets: if prompts were ordered by age over length, long ones would starve.
TEST(ServeGridTest, ReleaseAloneKeepsUpWithASmallBudgetWhereVllmDoes) {
  ServeGridOptions grid = GridOf({"conversation", "long_prompts"}, 1, 0.7);
  grid.candidate = "bf_io_release";
  grid.against = "vllm";
  grid.budgets = {256};
  int cells = 0;
  const auto judge = [&](const ServeCell& cell) {
    EXPECT_LT(cell.candidate.e2e_s, cell.best.e2e_s) << cell.workload;
    ++cells;
  };
  const absl::Status status = RunServeGrid(grid, judge, GoesOn);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(cells, 2);
}

// A wave delays many decodes, which outweighs the first token of a short prompt; this bounds its wait.
TEST(ServeRunTest, ReleaseAloneHoldsNoShortPromptForLong) {
  const Trace trace = *SampleProfile("reasoning", 5000, 7);
  ServeOptions options = ServeWith("bf_io_release", 0);
  options.budget = 512;
  options.lag = 2;
  const ServeResult release = RunOf(options, trace);
  options.rule = "vllm";
  options.lag = 0;
  EXPECT_LT(release.ttft_s.p50, 6 * RunOf(options, trace).ttft_s.p50);
}

// With noise, so that the fit differs from the true cost.
TEST(ServeRunTest, AFittedCostIsAsGoodAsTheTrueOneIfItHasAttention) {
  const Trace trace = *SampleProfile("long_prompts", 5000, 7);
  ServeOptions options = ServeWith("bf_io", 1);
  options.load = 0.5;
  options.lag = 2;
  options.jitter = 0.05;
  const ServeResult exact = RunOf(options, trace);
  options.known_cost = KnownCost::kFitted;
  EXPECT_NEAR(RunOf(options, trace).e2e_s.mean / exact.e2e_s.mean, 1, 0.02);
  options.known_cost = KnownCost::kFittedWithoutK1;
  EXPECT_GT(RunOf(options, trace).e2e_s.mean / exact.e2e_s.mean, 1.08);
}

TEST(ServeGridTest, ARuleThatKeepsUpWithNoBudgetIsAnErrorAfterTheLastCell) {
  ServeGridOptions grid = GridOf({"short"}, 2, 0.5, 2);
  grid.loads = {0.5, 0.6};
  grid.workloads[0].trace = TraceOf({{0, 4, 100}});
  // More than 8 requests decode, so the engines' rules compute no prompt tokens; equal_chunks computes
  // 16.
  grid.budgets = {8};
  std::vector<ServeCell> cells;
  const absl::Status status = RunServeGrid(
      grid, [&](const ServeCell& cell) { cells.push_back(cell); }, GoesOn);
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[0].best.rule, "equal_chunks");
  EXPECT_THAT(cells[0].cannot_run, ::testing::Contains("vllm"));
  EXPECT_THAT(cells[0].cannot_run, ::testing::Not(::testing::Contains("equal_chunks")));
  EXPECT_THAT(ServeCellJson(cells[0])["cannot_run"].dump(), HasSubstr("vllm"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("vllm in short on 8b with 2 ranks at load 0.5"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("vllm in short on 8b with 2 ranks at load 0.6"));
}

TEST(ServeGridTest, EveryCellHasAFloorBelowItsRuns) {
  ServeGridOptions grid = GridOf({"short"}, 2, 0.5, 2);
  grid.budgets = {2048};
  int cells = 0;
  const auto judge = [&](const ServeCell& cell) {
    ++cells;
    ASSERT_TRUE(cell.floor.has_value());
    EXPECT_LT(cell.floor->e2e_s, cell.best.e2e_s);
    EXPECT_LT(cell.floor->e2e_s, cell.candidate.e2e_s);
    EXPECT_GT(cell.floor->e2e_s, cell.best.e2e_s / 3);
    EXPECT_EQ(ServeCellJson(cell)["floor"]["e2e_s"], cell.floor->e2e_s);
  };
  EXPECT_TRUE(RunServeGrid(grid, judge, GoesOn).ok());
  EXPECT_EQ(cells, 1);
  grid.closed = true;
  ASSERT_TRUE(RunServeGrid(
                  grid, [](const ServeCell& cell) { EXPECT_FALSE(cell.floor.has_value()); }, GoesOn)
                  .ok());
}

TEST(ServeGridTest, ABudgetTooSmallForTheOtherRuleGivesNoCell) {
  ServeGridOptions grid = GridOf({"short"}, 2, 0.5, 2);
  grid.candidate = "bf_io_release";
  grid.against = "vllm";
  grid.budgets = {1, 2048};
  std::vector<int64_t> budgets;
  const auto add = [&](const ServeCell& cell) { budgets.push_back(cell.budget); };
  const absl::Status status = RunServeGrid(grid, add, GoesOn);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(budgets, ElementsAre(2048));
  grid.budgets = {1};
  const absl::Status none = RunServeGrid(grid, add, GoesOn);
  EXPECT_THAT(std::string(none.message()), HasSubstr("vllm in short on 8b"));
}

TEST(ServeGridTest, EndsOnASignal) {
  const absl::Status status = RunServeGrid(
      GridOf({"conversation"}, 2, 0.5), [](const ServeCell&) { FAIL() << "a cell that was not run"; },
      [] { return false; });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace bfio::sim
