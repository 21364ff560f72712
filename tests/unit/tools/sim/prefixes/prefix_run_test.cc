// Whole runs: reproducible for a seed, equal where a rule has no choice, the effects of caches.
#include "tools/sim/prefixes/prefix_run.h"

#include <string>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;

PrefixRunOptions RunWith(const std::string& workload, const std::string& policy, int32_t ranks = 2) {
  PrefixRunOptions options;
  options.workload = workload;
  options.policy = policy;
  options.ranks = ranks;
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
  for (const char* policy : {"least_work", "sglang_cache_aware"}) {
    PrefixRunOptions options = RunWith("chat", policy);
    const std::string once = Outcome(options);
    EXPECT_EQ(Outcome(options), once);
    options.seed = 2;
    EXPECT_NE(Outcome(options), once);
  }
}

TEST(PrefixRunTest, WithOneRankAllRulesAreAlike) {
  for (const char* workload : {"none", "documents", "chat"}) {
    PrefixRunOptions options = RunWith(workload, "direct_least_requests", 1);
    // At this load no request waits in the router.
    options.load = 0.3;
    const std::string alone = Outcome(options);
    for (const char* policy : {"least_requests", "least_work", "vllm", "round_robin", "least_tokens",
                               "sglang_cache_aware", "dynamo_kv"}) {
      options.policy = policy;
      EXPECT_EQ(Outcome(options), alone) << policy << " on " << workload;
    }
  }
}

TEST(PrefixRunTest, NothingSharedMeansNoHits) {
  EXPECT_EQ(RunPrefixes(RunWith("none", "least_work"))->hit_share, 0);
}

TEST(PrefixRunTest, SessionsFindTheirTurnsWhereTheyWere) {
  const auto run = RunPrefixes(RunWith("agents", "sglang_cache_aware"));
  EXPECT_GT(run->hit_share, 0.8);
  EXPECT_LT(run->hit_share, 1);
}

TEST(PrefixRunTest, ExpectedCacheHitsAreNotFoundWithoutCaches) {
  PrefixRunOptions options = RunWith("system_prompts", "least_work");
  EXPECT_GT(RunPrefixes(options)->found_share, 0.9);
  options.engine.caches = false;
  const auto run = RunPrefixes(options);
  EXPECT_EQ(run->hit_share, 0);
  EXPECT_EQ(run->found_share, 0);
}

TEST(PrefixRunTest, InABarrierEveryStepTakesAsLongAsTheSlowest) {
  PrefixRunOptions options = RunWith("none", "direct_least_requests", 1);
  options.load = 0.3;
  const std::string alone = Outcome(options);
  options.barrier = true;
  EXPECT_EQ(RunPrefixes(options)->e2e_s.mean, nlohmann::json::parse(alone)["e2e_s_mean"]) << "with one rank";
  options.ranks = 4;
  const double together = RunPrefixes(options)->tpot_s.mean;
  options.barrier = false;
  EXPECT_GT(together, 1.1 * RunPrefixes(options)->tpot_s.mean);
}

// bf_io_auto uses waves and prefixes; vllm uses neither, sglang_cache_aware only prefixes.
TEST(PrefixRunTest, InABarrierPromptsGoTogetherAndToTheirPrefixes) {
  PrefixRunOptions options = RunWith("documents", "bf_io_auto", 4);
  options.barrier = true;
  const auto ours = RunPrefixes(options);
  EXPECT_GT(ours->hit_share, 0.5);
  EXPECT_EQ(Outcome(options), Outcome(options));
  for (const char* other : {"vllm", "sglang_cache_aware"}) {
    options.policy = other;
    EXPECT_LT(ours->e2e_s.mean, 0.9 * RunPrefixes(options)->e2e_s.mean) << other;
  }
}

// Engines with the scheduler class; without regard to prefixes they find a third of these prompts.
TEST(PrefixRunTest, RanksThatFollowLevelsGetPromptsOfWhichTheyHoldThePrefix) {
  PrefixRunOptions options = RunWith("documents", "bf_io_auto", 4);
  options.barrier = true;
  const auto waves = RunPrefixes(options);
  options.engine.metered = true;
  const auto levels = RunPrefixes(options);
  EXPECT_GT(levels->hit_share, 0.4);
  EXPECT_LT(levels->ttft_s.mean, 0.8 * waves->ttft_s.mean);
  EXPECT_LT(levels->e2e_s.mean, 0.9 * waves->e2e_s.mean);
}

TEST(PrefixRunTest, InABarrierAnObjectiveBoundsTheWaitForAWave) {
  PrefixRunOptions options = RunWith("agents", "bf_io_auto", 4);
  options.barrier = true;
  options.requests = 1'500;
  const auto without = RunPrefixes(options);
  options.ttft_objective_s = 0.5;
  const auto with = RunPrefixes(options);
  EXPECT_GT(without->ttft_s.p99, 1);
  EXPECT_LT(with->ttft_s.p99, 0.6);
  EXPECT_LT(with->e2e_s.mean, 1.1 * without->e2e_s.mean);
}

TEST(PrefixRunTest, EveryRequestEndsAlsoInOverload) {
  for (const char* policy : {"least_work", "dynamo_kv", "bf_io_auto"}) {
    PrefixRunOptions options = RunWith("none", policy);
    options.load = 2;
    options.barrier = std::string(policy) == "bf_io_auto";
    const auto run = RunPrefixes(options);
    EXPECT_NEAR(static_cast<double>(run->requests), 240, 45) << "four fifths of about 300";
    EXPECT_GT(run->queue_max, 10);
    EXPECT_LT(run->throughput_per_s, 1.3 * run->capacity_per_s);
  }
}

TEST(PrefixRunTest, UnknownPoliciesAreRefused) {
  EXPECT_THAT(std::string(RunPrefixes(RunWith("none", "x")).status().message()), HasSubstr("x"));
}

}  // namespace
}  // namespace bfio::sim
