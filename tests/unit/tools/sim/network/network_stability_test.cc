// One engine: which schedulers are throughput-optimal, and the limits of those that are not. Figures of
// "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Sections 3 and 5.
#include <algorithm>
#include <string>
#include <vector>

#include "common/cost/batch_time.h"
#include "gtest/gtest.h"
#include "tests/unit/tools/sim/network/network_runs.h"
#include "tools/sim/network/engine.h"
#include "tools/sim/network/examples.h"

namespace bfio::sim {
namespace {

// The smallest growth that verdicts must detect, as a share of an engine's throughput.
constexpr double kShare = 0.005;

NetworkOptions Fcfs(const char* scheduler, double horizon) {
  return {.order = CallOrder::kCallAge, .scheduler = scheduler, .horizon = horizon};
}

// (100, 100)-token requests, b = 512, t = 45.5 ms + 0.30 ms (x - 64): 2.846 tokens/ms, 14.230 requests/s.
Network OneEngine(double rate) {
  return ParallelEngines(1, rate / 14.230);
}

TEST(StabilityTest, CapacityIsThePapers) {
  EXPECT_NEAR(BatchSeconds(512), 0.1799, 1e-9);
  EXPECT_NEAR(512 / BatchSeconds(512) / 1000, 2.846, 5e-4);
  EXPECT_NEAR(ParallelEngines(1, 1).types[0].rate, 14.230, 5e-4);
}

// Requests in the system at 90 s: the mean of eight seeds, against the mean of 300 seeds with a band of three
// standard errors. Growth in tokens/ms over the second half of 200 s; vllm_v0 at 13/s still fills up then.
//
// The paper's figure shows a single Poisson sample, which differs. Between seeds the standard deviation is
// 16, 33 and 39 requests for sarathi at 10, 13 and 14/s, and 33, 68 and 58 for vllm_v0. The paper's samples
// had few arrivals, which faster_transformer shows, since it serves some 90 requests by then in any case: the
// paper's 791, 1040 and 1126 are 0.7, 1.3 and 1.3 standard deviations below ours. The other rows agree with
// that: 59, 121 and 149 for sarathi (ours 71, 165, 236), 59, 122 and 155 for orca (71, 174, 270), 99, 366 and
// 506 for vllm_v0 (132, 469, 616). The farthest, 149 for sarathi, is reached or undercut by 5 seeds of 300.
// The paper's growth for faster_transformer at 5/s, 0.75, is one sample of (5 - 1.06) x 0.2 = 0.79.
TEST(StabilityTest, TableOfRates) {
  const struct {
    double rate;
    const char* scheduler;
    double at_90_s, band;
    double growth;
  } cases[] = {
      {5, "sarathi", 26, 6, 0},       {5, "orca", 26, 6, 0},
      {5, "vllm_v0", 32, 8, 0},       {5, "faster_transformer", 362, 22, 0.79},
      {10, "sarathi", 71, 17, 0},     {10, "orca", 71, 17, 0},
      {10, "vllm_v0", 132, 35, 0},    {10, "faster_transformer", 812, 32, 1.80},
      {13, "sarathi", 165, 35, 0},    {13, "orca", 174, 39, 0},
      {13, "vllm_v0", 469, 72, 0.08}, {13, "faster_transformer", 1083, 36, 2.40},
      {14, "sarathi", 236, 42, 0},    {14, "orca", 270, 58, 0},
      {14, "vllm_v0", 616, 62, 0.26}, {14, "faster_transformer", 1173, 38, 2.60},
  };
  for (const auto& c : cases) {
    double at_90_s = 0, growth = 0;
    const int seeds = 8;
    NetworkOptions options = Fcfs(c.scheduler, 200);
    for (options.seed = 1; options.seed <= seeds; ++options.seed) {
      const NetworkRun run = Simulate(OneEngine(c.rate), options);
      at_90_s += static_cast<double>(run.agents[90]) / seeds;
      growth += SecondHalfSlope(run.tokens, 1) / 1000 / seeds;
    }
    EXPECT_NEAR(at_90_s, c.at_90_s, c.band) << c.scheduler << " at " << c.rate;
    EXPECT_NEAR(growth, c.growth, 0.05) << c.scheduler << " at " << c.rate;
  }
}

// Beyond capacity the backlog of work-conserving schedulers grows by the excess load and no more; others'
// grows faster. Tokens/ms over 600 s; random arrivals alone give slopes a standard deviation of 0.05 between
// seeds.
TEST(StabilityTest, OverloadSlopes) {
  const struct {
    double load;
    const char* scheduler;
    double growth;
  } cases[] = {{1.1, "sarathi", 0.285}, {1.1, "orca", 0.285},
               {1.1, "vllm_v0", 0.57},  {1.1, "faster_transformer", 2.92},
               {1.2, "sarathi", 0.569}, {1.2, "orca", 0.569},
               {1.2, "vllm_v0", 0.85},  {1.2, "faster_transformer", 3.20}};
  for (const auto& c : cases) {
    const double growth = Mean(Slopes(ParallelEngines(1, c.load), Fcfs(c.scheduler, 600), 2)) / 1000;
    EXPECT_NEAR(growth, c.growth, 0.05) << c.scheduler << " at " << c.load;
  }
  // Independent of random arrivals: full batches from soon after the start to the end.
  for (const char* scheduler : {"sarathi", "orca"}) {
    const NetworkRun run = Simulate(ParallelEngines(1, 1.2), Fcfs(scheduler, 600));
    EXPECT_NEAR(static_cast<double>(run.tokens_computed) / (600 / BatchSeconds(512) * 512), 1, 0.01);
  }
}

// Figure 1: just below capacity, with the same arrivals, work-conserving schedulers are bounded; 2 % above it
// none is.
TEST(StabilityTest, WorkConservingSchedulersStayBoundedAndTheOthersGrow) {
  for (const char* scheduler : {"sarathi", "orca"}) {
    EXPECT_EQ(Verdict(OneEngine(14), Fcfs(scheduler, 2000), 7, kShare), "bounded") << scheduler;
    EXPECT_EQ(Verdict(ParallelEngines(1, 1.02), Fcfs(scheduler, 1500), 2, kShare), "grows") << scheduler;
  }
  EXPECT_EQ(Verdict(OneEngine(14), Fcfs("vllm_v0", 400), 7, kShare), "grows");
  EXPECT_EQ(Verdict(OneEngine(14), Fcfs("faster_transformer", 200), 7, kShare), "grows");
}

// vllm_v0's prompt batches hold only what arrived during the batch before: its own limit is near 13/s, where
// its backlog grows by 40 tokens/s.
TEST(StabilityTest, VllmHasItsOwnLimit) {
  EXPECT_EQ(Verdict(OneEngine(12), Fcfs("vllm_v0", 2000), 2, kShare), "bounded");
  std::vector<double> rises, slopes;
  NetworkOptions options = Fcfs("vllm_v0", 4000);
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    const NetworkRun run = Simulate(OneEngine(13), options);
    rises.push_back(PeakGrowth(run.tokens, 1));
    slopes.push_back(SecondHalfSlope(run.tokens, 1));
  }
  EXPECT_EQ(JudgeGrowth(rises, kShare * 512 / BatchSeconds(512)).Name(), "grows");
  EXPECT_NEAR(Mean(slopes), 40, 25);
}

// faster_transformer's limit: 5 prompts in one batch and 100 batches of 5 decodes each, 5 / (t_500 + 100 t_5)
// = 1.06 requests/s. Each request beyond it adds 200 tokens: 8 tokens/s at 1.1/s.
TEST(StabilityTest, FasterTransformerHasItsOwnLimit) {
  EXPECT_NEAR(5 / (BatchSeconds(500) + 100 * BatchSeconds(5)), 1.058, 1e-3);
  const double share = 4 / (512 / BatchSeconds(512));
  EXPECT_EQ(Verdict(OneEngine(0.98), Fcfs("faster_transformer", 6000), 3, share), "bounded");
  EXPECT_EQ(Verdict(OneEngine(1.12), Fcfs("faster_transformer", 6000), 3, share), "grows");
  EXPECT_EQ(Verdict(OneEngine(1.2), Fcfs("faster_transformer", 2000), 3, kShare), "grows");
}

// Prompts of 300 tokens, of which a batch of 512 holds one: a batch per prompt and the decodes' share of full
// batches give 1 / (t_300 + 100 / 512 t_512) = 6.60 requests per second instead of 7.115.
TEST(StabilityTest, WholePromptsThatDoNotFillABatchCostThroughput) {
  EXPECT_NEAR(1 / (BatchSeconds(300) + 100 * BatchSeconds(512) / 512), 6.60, 0.01);
  Network network = ParallelEngines(1, 1);
  network.types[0].calls[0].prefill = {300};
  const auto verdict = [&](const char* scheduler, double rate) {
    network.types[0].rate = rate;
    return Verdict(network, Fcfs(scheduler, 1500), 3, 2 * kShare);
  };
  EXPECT_EQ(verdict("vllm_v0", 6.3), "bounded");
  EXPECT_EQ(verdict("vllm_v0", 6.9), "grows");
  EXPECT_EQ(verdict("sarathi", 6.9), "bounded");
  EXPECT_EQ(verdict("sarathi", 7.4), "grows");
}

// --- the paper's third version: CodeLlama-34B, a staircase ---

Network Staircase(int64_t token_budget, double rate, double prefill, double decode) {
  Network network{.engines = 1, .token_budget = token_budget};
  const BatchCost cost = StaircaseCodeLlama34B();
  network.batch_time = [cost](int64_t tokens) { return cost.Seconds(tokens); };
  network.types = {{"request", rate, {{0, 1, {prefill}, {decode}, {}}}}};
  return network;
}

TEST(StaircaseTest, CapacityFor129And112Tokens) {
  EXPECT_NEAR(Staircase(512, 13.87, 129, 112).Load(0), 1, 1e-3);
  EXPECT_EQ(Verdict(Staircase(512, 13.5, 129, 112), Fcfs("sarathi", 2000), 3, kShare), "bounded");
  EXPECT_EQ(Verdict(Staircase(512, 14.25, 129, 112), Fcfs("sarathi", 2000), 3, kShare), "grows");
}

// The paper's "Vertex C": a request of 290 + 990 tokens every 467.5 ms, 100 slots. Ten batches of 128 tokens
// take that time and compute exactly one request.
struct VertexC {
  NetworkRun run;
  // Number of batches, and of those with 29 prompt tokens and 99 decodes.
  int64_t batches = 0, settled = 0;
};

VertexC RunVertexC(const char* scheduler, int64_t token_budget) {
  VertexC vertex;
  Network network = Staircase(token_budget, 1 / 0.4675, 290, 990);
  network.types[0].evenly = true;
  NetworkOptions options = Fcfs(scheduler, 3000);
  options.slots = 100;
  options.watch = [&](const LaneBatch& lane) {
    int64_t prefill = 0, decode = 0;
    for (const worker::Chunk& chunk : lane.chunks)
      (lane.requests[chunk.which].decoding() ? decode : prefill) += chunk.rows;
    ++vertex.batches;
    vertex.settled += prefill == 29 && decode == 99;
  };
  vertex.run = Simulate(network, options);
  return vertex;
}

TEST(StaircaseTest, VertexC) {
  EXPECT_NEAR(Staircase(128, 1 / 0.4675, 290, 990).Load(0), 1, 1e-9);
  const VertexC settles = RunVertexC("sarathi", 128);
  EXPECT_GT(settles.settled, settles.batches * 9 / 10);
  EXPECT_LE(settles.run.PeakOf(2000, 3000), settles.run.PeakOf(1000, 2000) + 128);
  // In tokens/s; 2,738 tokens/s arrive.
  EXPECT_GT(PeakGrowth(RunVertexC("orca", 128).run.tokens, 1), 400);
  EXPECT_GT(PeakGrowth(RunVertexC("sarathi", 1024).run.tokens, 1), 400);
  for (const char* scheduler : {"vllm_v0", "faster_transformer"})
    EXPECT_EQ(RunVertexC(scheduler, 128).run.tokens_computed, 0) << "290 > 128: no prompt ever starts";
}

}  // namespace
}  // namespace bfio::sim
