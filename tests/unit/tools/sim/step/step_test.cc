// One engine with a batch scheduler: the step time model, hand-computed runs, and conservation of tokens.
#include <string>
#include <utility>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/sim/step/one_engine.h"
#include "worker/scheduler/batch_check.h"

namespace bfio::sim {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BatchTimeTest, ThePapersConstants) {
  const BatchCost llama;
  EXPECT_NEAR(llama.Seconds(512), 0.1799, 1e-9);
  EXPECT_NEAR(llama.Capacity(512), 2846, 0.5);
  EXPECT_NEAR(llama.Capacity(512) / 200, 14.230, 5e-4) << "requests of 100 + 100 tokens per second";
  EXPECT_NEAR(llama.Seconds(64), 45.5e-3, 1e-12);
  EXPECT_NEAR(llama.Seconds(1), 45.5e-3, 1e-12);
  EXPECT_EQ(llama.Seconds(0), 0);
  const BatchCost code = StaircaseCodeLlama34B();
  EXPECT_NEAR(code.Seconds(512), 0.15316, 1e-9);
  EXPECT_NEAR(code.Seconds(385), 0.15316, 1e-9) << "the same stair";
  EXPECT_NEAR(code.Capacity(512) / 200, 16.715, 1e-3);
}

TEST(BatchTimeTest, LongContextsAndOverflow) {
  BatchCost cost = {
      .k1_s_per_pair = 1e-6, .k2_s_per_token = 1e-5, .swap_s_per_token = 3e-5, .recompute_s_per_token = 2e-5};
  BatchLoad load;
  load.AddPrefill(20, 1000);
  load.AddDecode(500);
  load.AddDecode(30);
  EXPECT_EQ(load.tokens, 22);
  EXPECT_NEAR(cost.Seconds(load), 45.5e-3 + 1e-6 * 20 * 1010 + 1e-5 * 530, 1e-12);
  load.overflow_tokens = 100;
  EXPECT_NEAR(cost.Seconds(load), 45.5e-3 + 1e-6 * 20 * 1010 + 1e-5 * 530 + 2e-3, 1e-12);
  cost.recompute_s_per_token = 0;
  EXPECT_NEAR(cost.Seconds(load), 45.5e-3 + 1e-6 * 20 * 1010 + 1e-5 * 530 + 3e-3, 1e-12)
      << "the only way out";
  // A prompt in chunks attends to as many pairs as in one piece.
  BatchLoad whole, pieces;
  whole.AddPrefill(700, 0);
  for (int64_t done = 0; done < 700; done += 100) pieces.AddPrefill(100, done);
  EXPECT_DOUBLE_EQ(whole.prefill_pairs, pieces.prefill_pairs);
  EXPECT_NEAR(LongContextLlama70B().k1_s_per_pair, 4.2e-9, 1e-10);
  EXPECT_NEAR(LongContextLlama70B().k2_s_per_token, 8.04e-8, 1e-9);
  EXPECT_NEAR(LongContextCodeLlama34B().k1_s_per_pair, 5.04e-9, 1e-11);
  EXPECT_NEAR(LongContextCodeLlama34B().k2_s_per_token, 9.64e-8, 1e-10);
}

OneEngineOptions Options(const std::string& scheduler, int64_t budget) {
  OneEngineOptions options = {.scheduler = scheduler};
  options.engine.token_budget = budget;
  return options;
}

OneEngineRun Simulate(const std::vector<StepArrival>& arrivals, const OneEngineOptions& options) {
  auto run = RunOneEngine(arrivals, options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

TEST(OneEngineTest, TwoRequestsByHand) {
  // 64 + 36 prompt tokens, then three decodes; the second request arrives during the third batch.
  const std::vector<StepArrival> arrivals = {{1.0, 100, 3}, {1.1, 10, 1}};
  const OneEngineRun run = Simulate(arrivals, Options("sarathi", 64));
  EXPECT_EQ(run.batches, 5);
  EXPECT_NEAR(run.lives[0].prefilled, 1.091, 1e-9);
  EXPECT_NEAR(run.lives[0].completed, 1 + 5 * 0.0455, 1e-9);
  EXPECT_NEAR(run.lives[1].prefilled, 1 + 4 * 0.0455, 1e-9) << "it waits for the batch that runs";
  EXPECT_NEAR(run.lives[1].completed, 1 + 5 * 0.0455, 1e-9);
  const StepLatencies latencies = LatenciesOf(arrivals, run.lives, 0, false);
  EXPECT_THAT(latencies.ttft[0], DoubleNear(0.091, 1e-9));
  EXPECT_THAT(latencies.tpot[0], DoubleNear(0.0455, 1e-9));
  OneEngineOptions gives = Options("sarathi", 64);
  gives.engine.prompt_gives_token = true;
  const OneEngineRun given = Simulate(arrivals, gives);
  EXPECT_NEAR(given.lives[0].completed, 1 + 4 * 0.0455, 1e-9);
  // For the first request two tokens follow the first one; the other request gets its only token with its
  // prompt.
  EXPECT_THAT(LatenciesOf(arrivals, given.lives, 0, true).tpot, ElementsAre(DoubleNear(0.0455, 1e-9)));
}

TEST(OneEngineTest, EveryTokenIsComputedOnceWhateverTheScheduler) {
  for (const std::string& scheduler : worker::SchedulerNames()) {
    SCOPED_TRACE(scheduler);
    Rng rng(7);
    std::vector<StepArrival> arrivals;
    int64_t tokens = 0;
    for (int i = 0; i < 400; ++i) {
      StepArrival arrival = {.at = (arrivals.empty() ? 0 : arrivals.back().at) + 0.3 * rng.Exponential(),
                             .prefill = 1 + static_cast<int64_t>(rng.Below(250)),
                             .decode = 1 + static_cast<int64_t>(rng.Below(60))};
      tokens += arrival.prefill + arrival.decode;
      arrivals.push_back(arrival);
    }
    OneEngineOptions options = Options(scheduler, 256);
    options.engine.slots = 20;
    options.engine.kv_tokens = 2000;
    options.sample_s = 1;
    const OneEngineRun run = Simulate(arrivals, options);
    EXPECT_EQ(run.completed, 400);
    EXPECT_EQ(run.tokens, tokens);
    EXPECT_FALSE(run.stuck);
    for (size_t i = 0; i < arrivals.size(); ++i) {
      EXPECT_LT(arrivals[i].at, run.lives[i].prefilled);
      // A prompt's last chunk and a decode of the same request are never in one batch.
      EXPECT_LE(run.lives[i].prefilled + 0.0455 * static_cast<double>(arrivals[i].decode) - 1e-9,
                run.lives[i].completed);
    }
    EXPECT_GT(*std::max_element(run.requests_left.begin(), run.requests_left.end()), 3);
    EXPECT_LE(run.busy_s, run.end_s);
  }
}

TEST(OneEngineTest, KvIsReservedOrItsOverflowTakesTime) {
  const std::vector<StepArrival> arrivals = {{0, 60, 40}, {0, 60, 40}};
  OneEngineOptions options = Options("sarathi", 512);
  options.engine.kv_tokens = 150;
  const OneEngineRun reserved = Simulate(arrivals, options);
  EXPECT_NEAR(reserved.lives[1].prefilled, reserved.lives[0].completed + 0.0455, 1e-9) << "one at a time";
  options.engine.reserve_kv = false;
  options.engine.cost.swap_s_per_token = options.engine.cost.recompute_s_per_token = 1e-3;
  const OneEngineRun swapped = Simulate(arrivals, options);
  // Prompts of 120 tokens, then 2 more tokens per batch: from the 16th decode on they exceed 150 by 2, 4 ..
  // 50.
  const double plain = options.engine.cost.Seconds(120) + 40 * options.engine.cost.Seconds(2);
  EXPECT_NEAR(swapped.end_s, plain + 1e-3 * 2 * 25 * 26 / 2, 1e-9);
}

TEST(OneEngineTest, ALongPromptBlocksWholePromptSchedulers) {
  const std::vector<StepArrival> arrivals = {{0, 290, 990}, {0.4675, 290, 990}, {0.935, 20, 5}};
  for (const char* scheduler : {"vllm_v0", "faster_transformer"}) {
    const OneEngineRun run = Simulate(arrivals, Options(scheduler, 128));
    EXPECT_TRUE(run.stuck);
    EXPECT_EQ(run.completed, 0);
  }
  OneEngineOptions cut = Options("vllm_v0", 128);
  cut.until_s = 0.5;  // before the last request arrives
  const OneEngineRun frozen = Simulate(arrivals, cut);
  EXPECT_TRUE(frozen.stuck);
  EXPECT_LE(frozen.end_s, 0.5);
  EXPECT_EQ(Simulate(arrivals, Options("sarathi", 128)).completed, 3);
  EXPECT_EQ(Simulate(arrivals, Options("vllm_v0", 290)).completed, 3);
}

TEST(OneEngineTest, WorkConservingSchedulersKeepUpWhereOthersFallBehind) {
  // 13.5 requests of 100 + 100 tokens per second, capacity 14.23 per second: growth of the backlog over the
  // second half of 400 s.
  const auto growth = [](const char* scheduler) {
    Rng rng(3);
    std::vector<StepArrival> arrivals;
    for (double at = 0; (at += rng.Exponential() / 13.5) < 400;) arrivals.push_back({at, 100, 100});
    OneEngineOptions options = Options(scheduler, 512);
    options.until_s = 400;
    options.sample_s = 1;
    const OneEngineRun run = Simulate(arrivals, options);
    return static_cast<double>(run.tokens_left[399] - run.tokens_left[199]) / 200;
  };
  EXPECT_LT(growth("sarathi"), 60);
  EXPECT_LT(growth("orca"), 60);
  // faster_transformer's own limit is about one request per second.
  EXPECT_GT(growth("faster_transformer"), 2000);
}

TEST(OneEngineTest, BadInputIsRefused) {
  EXPECT_THAT(std::string(RunOneEngine({{0, 0, 1}}, Options("sarathi", 8)).status().message()),
              HasSubstr("prompt of 0 tokens"));
  EXPECT_THAT(std::string(RunOneEngine({{1, 1, 1}, {0, 1, 1}}, Options("sarathi", 8)).status().message()),
              HasSubstr("is earlier than"));
  EXPECT_FALSE(RunOneEngine({}, Options("nobody", 8)).ok());
}

}  // namespace
}  // namespace bfio::sim
