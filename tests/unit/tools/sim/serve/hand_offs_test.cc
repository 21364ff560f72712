// Disaggregated prefill: every rule uses each hand-off once and in time, and KV memory is bounded.
#include "tools/sim/serve/hand_off_rules.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tools/sim/serve/serve_grid.h"
#include "tools/sim/serve/serve_run.h"

namespace bfio::sim {
namespace {

ServeOptions HandOffs(absl::string_view rule, uint64_t seed = 1) {
  const ServeEngine& engine = ServeEngines()[2];
  return {.rule = std::string(rule),
          .workers = 4,
          .slots = 32,
          .prefill_ranks = 8,
          .load = 1.2,
          .closed = true,
          .cost = {engine.cost},
          .lag = 2,
          .seed = seed};
}

TEST(HandOffTest, EveryRuleEndsAllRequestsAndUsesEachHandOffOnceWithinItsAge) {
  const Trace trace = *SampleProfile("burstgpt", 2000, 3);
  for (const HandOffRule& rule : HandOffRules()) {
    ServeOptions options = HandOffs(rule.name, 2);
    const auto run = RunServe(options, trace);
    ASSERT_TRUE(run.ok()) << rule.name << run.status();
    EXPECT_GE(run->times.requests, 2000) << rule.name;
    EXPECT_GE(run->handed_over, run->times.requests * (rule.keeps_prompts ? 0.9 : 1)) << rule.name;
    EXPECT_EQ(run->reused, 0) << rule.name;
    EXPECT_TRUE(!rule.begins_prompts || run->expired == 0) << "no prompt begins long before its slot";
    EXPECT_GT(run->balanced_tokens_per_s, run->throughput_tokens_per_s) << rule.name;
    const auto again = RunServe(options, trace);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->throughput_tokens_per_s, run->throughput_tokens_per_s) << rule.name;
  }
}

TEST(HandOffTest, AHandOffThatWaitsTooLongIsPrefilledAnew) {
  ServeOptions options = HandOffs("br0");
  options.lease_s = 0.3;
  options.lease_margin_s = 0.1;
  const auto run = RunServe(options, *SampleProfile("conversation", 5000, 7));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_GT(run->expired, 0);
  EXPECT_EQ(run->reused, 0);
  // It is sent before that age, and may wait in the engine for a slot.
  EXPECT_LT(run->hand_off_s.p99, 0.6);
}

TEST(HandOffTest, NoPromptBeginsForMemoryThatDecodeRanksDoNotHave) {
  const auto run = [](absl::string_view rule) {
    ServeOptions options = HandOffs(rule);
    options.kv_tokens = 20'000;
    return RunServe(options, *SampleProfile("conversation", 5000, 7));
  };
  const auto ours = run("bfio"), theirs = run("dynamo_requests");
  ASSERT_TRUE(ours.ok() && theirs.ok()) << ours.status() << theirs.status();
  EXPECT_LT(2 * ours->preempted, theirs->preempted);
  EXPECT_GT(ours->throughput_tokens_per_s, theirs->throughput_tokens_per_s);
  EXPECT_EQ(ours->expired, 0);
}

TEST(HandOffTest, PromptsThatDecodeRanksComputeSoonerStayThere) {
  const auto run = [](absl::string_view rule) {
    ServeOptions options = HandOffs(rule);
    options.slots = 256;
    options.load = 0.3;
    options.closed = false;
    return RunServe(options, *SampleProfile("burstgpt", 5000, 7));
  };
  const auto by_cost = run("bfio"), all = run("bfio_hands_all");
  ASSERT_TRUE(by_cost.ok() && all.ok()) << by_cost.status() << all.status();
  EXPECT_LT(by_cost->handed_over, 0.9 * all->handed_over);
  EXPECT_LT(by_cost->times.ttft_s.p50, 0.97 * all->times.ttft_s.p50);
  EXPECT_LT(by_cost->times.e2e_s.mean, all->times.e2e_s.mean);
}

}  // namespace
}  // namespace bfio::sim
