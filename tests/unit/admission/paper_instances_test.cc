// Instances of "Online Scheduling for LLM Inference with KV Cache Constraints" and what the paper claims of
// them that does not hold: documented counterexamples, with exact values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "common/base/rng.h"
#include "tools/sim/admission/one_worker.h"

namespace bfio::sim {
namespace {

KvRun Serve(const char* rule, int64_t prompt, const std::vector<int64_t>& outputs, int64_t memory) {
  std::vector<KvArrival> arrivals;
  for (const int64_t output : outputs) arrivals.push_back({0, prompt, output});
  KvRunOptions options;
  options.rule.memory = memory;
  const auto run = RunOneWorker(rule, arrivals, options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

// The least total latency of all schedules of simultaneous arrivals, by search over the starts in the order
// of the (sorted) outputs.
int64_t Optimum(int64_t prompt, const std::vector<int64_t>& outputs, int64_t memory) {
  const size_t n = outputs.size();
  int64_t horizon = 0, sum = 0;
  for (const int64_t output : outputs) horizon += output + 1, sum += output;
  std::vector<int64_t> used(static_cast<size_t>(2 * horizon + 16));
  // One after the other is always possible.
  int64_t best = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> starts(n);
  const std::function<void(size_t, int64_t)> place = [&](size_t i, int64_t total) {
    if (total >= best) return;
    if (i == n) {
      best = total;
      return;
    }
    // Equal outputs change places freely: their starts ascend.
    const int64_t first = i > 0 && outputs[i] == outputs[i - 1] ? starts[i - 1] : 0;
    for (int64_t start = first; start <= horizon && total + start < best; ++start) {
      bool fits = true;
      for (int64_t t = 0; t <= outputs[i] && fits; ++t)
        fits = used[static_cast<size_t>(start + t)] + prompt + t <= memory;
      if (!fits) continue;
      for (int64_t t = 0; t <= outputs[i]; ++t) used[static_cast<size_t>(start + t)] += prompt + t;
      starts[i] = start;
      place(i + 1, total + start);
      for (int64_t t = 0; t <= outputs[i]; ++t) used[static_cast<size_t>(start + t)] -= prompt + t;
    }
  };
  place(0, 0);
  return best + sum;
}

TEST(PaperInstances, ShortestFirstIsNotOptimalForSimultaneousArrivals) {
  // Theorem 4.2 says it is.
  EXPECT_EQ(Serve("mc_sf", 1, {2, 2, 3, 3}, 6).total_latency, 18);
  EXPECT_EQ(Optimum(1, {2, 2, 3, 3}, 6), 16);
  EXPECT_EQ(Serve("mc_sf", 0, {2, 2, 4, 4}, 5).total_latency, 17);
  EXPECT_EQ(Optimum(0, {2, 2, 4, 4}, 5), 16);
  EXPECT_EQ(Serve("mc_sf", 1, {2, 2, 3, 3}, 6).began, (std::vector<double>{0, 0, 3, 5}));
}

TEST(PaperInstances, HowOftenItIsNotAmongAllSmallOnes) {
  int instances = 0, suboptimal = 0;
  double ratios = 0, worst = 1;
  std::vector<int64_t> outputs;
  const std::function<void(size_t, int64_t)> each = [&](size_t n, int64_t least) {
    if (outputs.size() == n) {
      for (int64_t prompt = 1; prompt <= 2; ++prompt) {
        for (int64_t memory = prompt + 5; memory <= 2 * (prompt + 5); ++memory) {
          const double ratio = Serve("mc_sf", prompt, outputs, memory).total_latency /
                               static_cast<double>(Optimum(prompt, outputs, memory));
          ++instances;
          suboptimal += ratio > 1;
          ratios += ratio;
          worst = std::max(worst, ratio);
        }
      }
      return;
    }
    for (int64_t output = least; output <= 5; ++output) {
      outputs.push_back(output);
      each(n, output);
      outputs.pop_back();
    }
  };
  for (size_t n = 2; n <= 5; ++n) each(n, 1);
  EXPECT_EQ(instances, 3690);
  EXPECT_EQ(suboptimal, 384);
  EXPECT_NEAR(ratios / instances, 1.0061, 5e-5);
  EXPECT_NEAR(worst, 32.0 / 28, 1e-9);
}

TEST(PaperInstances, EqualLengthsFillMemoryInWaves) {
  EXPECT_EQ(Serve("mc_sf", 2, std::vector<int64_t>(6, 2), 9).total_latency, 30);
  EXPECT_EQ(Serve("mc_sf_paced", 2, std::vector<int64_t>(6, 2), 9).total_latency, 27);
  EXPECT_EQ(Optimum(2, std::vector<int64_t>(6, 2), 9), 27);
  struct Case {
    int64_t prompt, output, memory, requests;
    double ratio;
  };
  for (const Case& c : {Case{2, 2, 9, 600, 1.494}, {0, 20, 210, 2000, 1.794}, {1, 100, 5151, 3000, 1.888}}) {
    const std::vector<int64_t> outputs(static_cast<size_t>(c.requests), c.output);
    const KvRun greedy = Serve("mc_sf", c.prompt, outputs, c.memory);
    const KvRun paced = Serve("mc_sf_paced", c.prompt, outputs, c.memory);
    // The ratio is to a perfect stagger; ours begins what half the memory holds at once.
    EXPECT_NEAR(greedy.total_latency / paced.total_latency, c.ratio, 0.03) << c.output;
    EXPECT_LE(paced.peak_memory, c.memory);
  }
}

TEST(PaperInstances, EqualLengthsMakeShortestFirstUnstableAndThePaceDoesNot) {
  // Theorem 5.3 says that the average latency is within a constant of the optimum.
  const auto run = [](const char* rule, double rate, int64_t rounds) {
    Rng rng(7);
    std::vector<KvArrival> arrivals;
    for (double at = rng.Exponential() / rate; at < static_cast<double>(rounds);
         at += rng.Exponential() / rate)
      arrivals.push_back({std::ceil(at), 0, 20});
    KvRunOptions options;
    options.rule.memory = 210;
    options.max_rounds = rounds;
    KvRun result = *RunOneWorker(rule, arrivals, options);
    // What has arrived and was not begun.
    const auto backlog = static_cast<double>(std::count(result.began.begin(), result.began.end(), -1.0));
    return std::make_pair(result.mean_latency, backlog);
  };
  EXPECT_NEAR(run("mc_sf", 0.5, 20'000).first, 20.3, 1.5);
  EXPECT_NEAR(run("mc_sf", 0.8, 5'000).first, 803, 80);
  EXPECT_NEAR(run("mc_sf", 0.8, 20'000).first, 3187, 160);
  EXPECT_GT(run("mc_sf", 0.6, 20'000).second, 700);
  for (const double rate : {0.5, 0.6, 0.8, 0.9, 0.95}) {
    EXPECT_LT(run("mc_sf_paced", rate, 20'000).second, 100) << rate;
  }
  EXPECT_NEAR(run("mc_sf_paced", 0.8, 20'000).first, 21.9, 1);
  EXPECT_NEAR(run("mc_sf_paced", 0.9, 20'000).first, 24.2, 2.5);
}

TEST(PaperInstances, GreedyProtectionRepeatsItselfForEver) {
  // Two requests that fit together now and not at their ends: thrown out together, begun together.
  const KvRun greedy = Serve("protect:alpha=0.1", 2, {12, 12}, 20);
  EXPECT_TRUE(greedy.looped);
  EXPECT_EQ(greedy.completed, 0);
  const KvRun clearing = Serve("protect:alpha=0.1,beta=0.3", 2, {12, 12}, 20);
  EXPECT_FALSE(clearing.looped);
  EXPECT_EQ(clearing.completed, 2);
  EXPECT_GT(clearing.evictions, 0);
  for (const char* rule : {"mc_sf", "mc_sf_paced", "mc_fcfs"})
    EXPECT_EQ(Serve(rule, 2, {12, 12}, 20).evictions, 0);
}

TEST(PaperInstances, NoConstantFactorHolds) {
  // Theorem 6.2: one long request, and short ones that arrive when memory is nearly full.
  double last = 0;
  for (const double eps : {0.2, 0.1, 0.05}) {
    const auto memory = static_cast<int64_t>(20 / (eps * eps * eps));
    const auto prompt = static_cast<int64_t>(eps * static_cast<double>(memory));
    const auto longest = static_cast<int64_t>((1 - eps) * static_cast<double>(memory));
    std::vector<KvArrival> arrivals = {{0, prompt, longest}};
    const auto when = static_cast<double>((1 - 2 * eps) * static_cast<double>(memory));
    for (int64_t i = 0; i < prompt; ++i) arrivals.push_back({std::floor(when), prompt, 1});
    KvRunOptions options;
    options.rule.memory = memory;
    options.loop_rounds = 4 * memory;
    const double online = RunOneWorker("mc_sf", arrivals, options)->total_latency;
    const auto m = static_cast<double>(memory);
    const double hindsight = eps * eps * eps * m * m / 2 + (2 - 1.5 * eps) * m;
    EXPECT_GT(online / hindsight, 0.8 / eps) << eps;
    EXPECT_GT(online / hindsight, 1.5 * last);
    last = online / hindsight;
  }
}

}  // namespace
}  // namespace bfio::sim
