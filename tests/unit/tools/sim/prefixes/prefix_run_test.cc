// Traffic with shared prefixes, and whole runs: reproducible for a seed, equal where a rule has no choice,
// the effects of caches.
#include "tools/sim/prefixes/prefix_run.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tools/sim/prefixes/prefix_workload.h"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;

PrefixWorkload Workload(const char* name) {
  return {*FindWorkload(name), /*seed=*/1};
}

TEST(PrefixWorkloadTest, ATurnBeginsWithAllThatWasSaid) {
  const PrefixWorkload workload = Workload("agents");
  int turns = 0;
  for (int64_t number = 0; number < 5; ++number) {
    PrefixWorkload::Session session = workload.NewSession(number);
    auto before = workload.NextTurn(session);
    for (auto next = workload.NextTurn(session); next; next = workload.NextTurn(session), ++turns) {
      EXPECT_GT(next->prompt, before->prompt + before->output);
      ASSERT_GE(next->blocks.size(), before->blocks.size());
      EXPECT_TRUE(std::equal(before->blocks.begin(), before->blocks.end(), next->blocks.begin()));
      EXPECT_TRUE(std::equal(before->prefix->begin(), before->prefix->end(), next->prefix->begin()));
      EXPECT_EQ(next->prefix->size(), static_cast<size_t>(next->prompt / core::kPrefixBlockTokens));
      for (size_t i = 0; i < next->prefix->size(); ++i)
        ASSERT_EQ((*next->prefix)[i], next->blocks[4 * i + 3]);
      before = next;
    }
  }
  EXPECT_GT(turns, 10);
}

TEST(PrefixWorkloadTest, SessionsShareTheirFirstTextAlone) {
  for (const char* name : {"agents", "none"}) {
    const PrefixWorkload workload = Workload(name);
    PrefixWorkload::Session a = workload.NewSession(1), b = workload.NewSession(2);
    const auto first = workload.NextTurn(a)->blocks, second = workload.NextTurn(b)->blocks;
    const auto ends = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
    EXPECT_EQ(ends.first - first.begin(), std::string(name) == "none" ? 0 : 3'000 / kEngineBlockTokens);
  }
  EXPECT_THAT(std::string(FindWorkload("x").status().message()),
              HasSubstr("none, reasoning, system_prompts"));
}

TEST(PrefixWorkloadTest, MeanLengthsAndCapacityAreThoseOfTheShape) {
  constexpr int kSessions = 4'000;
  double output = 0, turns = 0;
  const PrefixWorkload prompts = Workload("system_prompts"), chat = Workload("chat");
  for (int i = 0; i < kSessions; ++i) {
    PrefixWorkload::Session one = prompts.NewSession(i), session = chat.NewSession(i);
    output += static_cast<double>(prompts.NextTurn(one)->output) / kSessions;
    while (chat.NextTurn(session)) turns += 1.0 / kSessions;
  }
  EXPECT_NEAR(output, 200, 15);
  EXPECT_NEAR(turns, 5, 0.4);
  // Prompts of 160 tokens and outputs of 3,569 in 64 slots: decodes take nearly all of the time.
  EngineOptions engine;
  engine.kv_tokens = 100'000'000;
  engine.cost = {.c_s = 0.01, .a_s_per_token = 0, .b0_tokens = 0};
  EXPECT_NEAR(Workload("reasoning").Capacity(engine) * 3'569 / (64 / 0.01), 1, 0.05);
}

// Requests whose prompts begin with the blocks 1, 2 and one of their own.
Trace SharedBlocks(int64_t requests, bool sessions) {
  Trace trace{.source = "test", .format = "test", .has_arrivals = !sessions, .block_tokens = 512};
  for (int64_t i = 0; i < requests; ++i) {
    TraceRequest request{
        .arrival_s = 0.5 * static_cast<double>(i), .prompt_tokens = 1'400, .output_tokens = 20};
    request.blocks = {1, 2, static_cast<uint64_t>(100 + i)};
    if (sessions && i % 4 != 0) request.after = i - 1, request.think_s = 3;
    trace.requests.push_back(request);
  }
  return trace;
}

TEST(PrefixWorkloadTest, ATracesRequestsShareTheBlocksThatItSays) {
  for (const bool sessions : {false, true}) {
    const Trace trace = SharedBlocks(8, sessions);
    const PrefixWorkload workload(&trace, 100'000, /*seed=*/1);
    PrefixWorkload::Session a = workload.NewSession(1), b = workload.NewSession(2);
    const auto first = *workload.NextTurn(a),
               second = *(sessions ? workload.NextTurn(a) : workload.NextTurn(b));
    EXPECT_EQ(first.prompt, 1'400);
    const auto ends = std::mismatch(first.blocks.begin(), first.blocks.end(), second.blocks.begin());
    EXPECT_EQ(ends.first - first.blocks.begin(), 1'024 / kEngineBlockTokens);
    if (!sessions) continue;
    EXPECT_EQ(workload.Think(a), 3);
    EXPECT_NE(workload.NextTurn(b)->blocks[0], first.blocks[0]) << "another session's blocks are its own";
    EXPECT_TRUE(workload.NextTurn(a) && workload.NextTurn(a) && !workload.NextTurn(a));
  }
  const Trace trace = SharedBlocks(101, false);
  const PrefixWorkload workload(&trace, 1'419, 1);
  const std::vector<double> arrivals = workload.Arrivals(/*sessions_per_s=*/10, 1'000);
  EXPECT_NEAR(arrivals.back(), 10.1, 1e-9);
  EXPECT_NEAR(arrivals[50], 5.05, 1e-9) << "evenly, as in the trace";
  // The second seed begins after 0.618 of the trace, and goes on with its beginning.
  const PrefixWorkload later(&trace, 1'420, 2);
  EXPECT_NEAR(later.Arrivals(10, 1'000)[50], 5, 0.1);
  EXPECT_EQ(later.NewSession(0).next, 62u);
  EXPECT_EQ(later.NewSession(39).next, 0u);
  PrefixWorkload::Session longer = workload.NewSession(0);
  EXPECT_FALSE(workload.NextTurn(longer)) << "fits no rank";
}

// --- runs ---

PrefixRunOptions RunWith(const std::string& workload, const std::string& policy, int32_t ranks = 2,
                         bool barrier = false) {
  PrefixRunOptions options;
  options.workload = workload;
  options.policy = policy;
  options.ranks = ranks;
  options.barrier = barrier;
  options.requests = 300;
  return options;
}

std::string Outcome(const PrefixRunOptions& options) {
  nlohmann::ordered_json json = PrefixRunJson(options, RunPrefixes(options).value());
  json.erase("policy");
  json.erase("found_share");
  return json.dump();
}

TEST(PrefixRunTest, ASeedDeterminesTheRun) {
  for (const char* policy : {"least_work", "smg_cache_aware", "bf_io_auto"}) {
    PrefixRunOptions options = RunWith("chat", policy, 2, std::string(policy) == "bf_io_auto");
    const std::string once = Outcome(options);
    EXPECT_EQ(Outcome(options), once);
    options.seed = 2;
    EXPECT_NE(Outcome(options), once);
  }
  EXPECT_THAT(std::string(RunPrefixes(RunWith("none", "x")).status().message()), HasSubstr("x"));
}

TEST(PrefixRunTest, WithOneRankAllRulesAreAlike) {
  for (const char* workload : {"none", "documents", "chat"}) {
    PrefixRunOptions options = RunWith(workload, "direct_least_requests", 1);
    // At this load no request waits in the router.
    options.load = 0.3;
    const std::string alone = Outcome(options);
    for (const char* policy : {"least_requests", "least_work", "vllm", "round_robin", "direct_least_tokens",
                               "direct_vllm", "direct_trtllm", "smg_cache_aware", "smg_least_load",
                               "router_power_of_two", "router_kv_aware", "llmd_prefix_load", "dynamo_kv"}) {
      options.policy = policy;
      EXPECT_EQ(Outcome(options), alone) << policy << " on " << workload;
    }
    options.barrier = true;
    EXPECT_EQ(RunPrefixes(options)->times.e2e_s.mean, nlohmann::json::parse(alone)["e2e_s_mean"]);
  }
}

TEST(PrefixRunTest, HitsAreFoundWhereTextsAreSharedAndCached) {
  EXPECT_EQ(RunPrefixes(RunWith("none", "least_work"))->hit_share, 0);
  const double sessions = RunPrefixes(RunWith("agents", "smg_cache_aware"))->hit_share;
  EXPECT_TRUE(sessions > 0.8 && sessions < 1) << sessions << ": turns go where the earlier ones were";
  PrefixRunOptions options = RunWith("system_prompts", "least_work");
  EXPECT_GT(RunPrefixes(options)->found_share, 0.9);
  options.engine.caches = false;
  EXPECT_EQ(RunPrefixes(options)->hit_share + RunPrefixes(options)->found_share, 0);
}

TEST(PrefixRunTest, ATracesSharedBlocksAreFoundInTheRanks) {
  const Trace trace = SharedBlocks(400, false);
  PrefixRunOptions options = RunWith("trace", "least_work");
  options.trace = &trace;
  const auto run = RunPrefixes(options);
  ASSERT_TRUE(run.ok()) << run.status();
  // Two of three blocks, except for the first prompts of each rank.
  EXPECT_NEAR(run->hit_share, 1'024.0 / 1'400, 0.02);
  EXPECT_GT(run->found_share, 0.95);
  const Trace sessions = SharedBlocks(40, true);
  options.trace = &sessions;
  options.requests = 4'000;  // most sessions then begin after the start
  EXPECT_NEAR(RunPrefixes(options)->hit_share, 0.75 * 1'024 / 1'400, 0.05)
      << "a session's first turn finds none";
}

// In a barrier every step takes as long as the slowest. bf_io_auto uses waves and prefixes; vllm uses
// neither, smg_cache_aware only prefixes. Ranks that follow levels get prompts of which they hold the
// prefix.
TEST(PrefixRunTest, InABarrierPromptsGoTogetherAndToTheirPrefixes) {
  PrefixRunOptions options = RunWith("none", "direct_least_requests", 4);
  options.load = 0.3;
  const double apart = RunPrefixes(options)->times.tpot_s.mean;
  options.barrier = true;
  EXPECT_GT(RunPrefixes(options)->times.tpot_s.mean, 1.1 * apart);
  options = RunWith("documents", "bf_io_auto", 4, true);
  const auto waves = RunPrefixes(options);
  EXPECT_GT(waves->hit_share, 0.5);
  options.engine.metered = true;
  const auto levels = RunPrefixes(options);
  EXPECT_GT(levels->hit_share, 0.4) << "a third without regard to prefixes";
  EXPECT_LT(levels->times.ttft_s.mean, 0.8 * waves->times.ttft_s.mean);
  EXPECT_LT(levels->times.e2e_s.mean, 0.9 * waves->times.e2e_s.mean);
  for (const char* other : {"vllm", "smg_cache_aware"})
    EXPECT_LT(waves->times.e2e_s.mean,
              0.9 * RunPrefixes(RunWith("documents", other, 4, true))->times.e2e_s.mean)
        << other;
}

TEST(PrefixRunTest, InABarrierAnObjectiveBoundsTheWaitForAWave) {
  PrefixRunOptions options = RunWith("agents", "bf_io_auto", 4, true);
  options.requests = 1'500;
  const auto without = RunPrefixes(options);
  options.ttft_objective_s = 0.5;
  const auto with = RunPrefixes(options);
  EXPECT_GT(without->times.ttft_s.p99, 0.9);
  EXPECT_LT(with->times.ttft_s.p99, 0.6);
  EXPECT_LT(with->times.e2e_s.mean, 1.1 * without->times.e2e_s.mean);
}

TEST(PrefixRunTest, EveryRequestEndsAlsoInOverload) {
  for (const char* policy : {"least_work", "dynamo_kv", "bf_io_auto"}) {
    PrefixRunOptions options = RunWith("none", policy, 2, std::string(policy) == "bf_io_auto");
    options.load = 2;
    const auto run = RunPrefixes(options);
    EXPECT_NEAR(static_cast<double>(run->times.requests), 240, 45) << "four fifths of about 300";
    EXPECT_GT(run->queue_max, 10);
    EXPECT_LT(run->throughput_per_s, 1.3 * run->capacity_per_s);
  }
}

}  // namespace
}  // namespace bfio::sim
