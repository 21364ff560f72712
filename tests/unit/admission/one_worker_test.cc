// The one-worker simulator: memory is never exceeded where lengths are known, or bounded, and nothing is
// lost.
#include "tools/sim/admission/one_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

std::vector<KvArrival> RandomArrivals(Rng& rng, int64_t memory, int count, int64_t error) {
  std::vector<KvArrival> arrivals;
  double at = 0;
  for (int i = 0; i < count; ++i) {
    at += std::floor(rng.Exponential() * 2);
    KvArrival arrival;
    arrival.at = at;
    arrival.prompt = static_cast<int64_t>(rng.Below(6));
    arrival.output =
        1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(memory - 2 * error - arrival.prompt)));
    if (error > 0) {
      arrival.believed = std::max<int64_t>(
          1, arrival.output - error + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(2 * error + 1))));
    }
    arrivals.push_back(arrival);
  }
  return arrivals;
}

// What the schedule holds at every time, both ends of each request included.
int64_t PeakOf(const std::vector<KvArrival>& arrivals, const KvRun& run) {
  std::vector<int64_t> used;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const auto began = static_cast<size_t>(run.began[i]);
    used.resize(std::max(used.size(), began + static_cast<size_t>(arrivals[i].output) + 1));
    for (int64_t t = 0; t <= arrivals[i].output; ++t)
      used[began + static_cast<size_t>(t)] += arrivals[i].prompt + t;
  }
  return used.empty() ? 0 : *std::max_element(used.begin(), used.end());
}

TEST(OneWorker, KnownLengthsNeverExceedMemory) {
  int64_t instances = 0;
  for (const char* rule : {"mc_sf", "mc_fcfs", "mc_sf_paced"}) {
    for (uint64_t seed = 1; seed <= 34'000; ++seed, ++instances) {
      Rng rng(seed);
      const auto memory = static_cast<int64_t>(12 + rng.Below(40));
      const std::vector<KvArrival> arrivals =
          RandomArrivals(rng, memory, 1 + static_cast<int>(rng.Below(12)), 0);
      KvRunOptions options;
      options.rule.memory = memory;
      const auto run = RunOneWorker(rule, arrivals, options);
      ASSERT_TRUE(run.ok()) << run.status();
      ASSERT_EQ(run->completed, static_cast<int64_t>(arrivals.size())) << rule << " " << seed;
      ASSERT_EQ(run->evictions, 0) << rule << " " << seed;
      ASSERT_LE(PeakOf(arrivals, *run), memory) << rule << " " << seed;
      for (size_t i = 0; i < arrivals.size(); ++i) {
        ASSERT_GE(run->began[i], arrivals[i].at);
        ASSERT_EQ(run->done[i], run->began[i] + static_cast<double>(arrivals[i].output));
      }
    }
  }
  EXPECT_GE(instances, 100'000);
}

TEST(OneWorker, AMarginAsLargeAsTheErrorIsSafeAndNoneIsNot) {
  // The paper's text takes the lower bound, o_hat - delta; safety needs o_hat + delta.
  int64_t evictions = 0;
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    Rng rng(seed);
    const auto memory = static_cast<int64_t>(24 + rng.Below(40));
    const std::vector<KvArrival> arrivals = RandomArrivals(rng, memory, 10, 4);
    KvRunOptions options;
    options.rule.memory = memory;
    const auto safe = RunOneWorker("mc_sf:margin=4", arrivals, options);
    ASSERT_TRUE(safe.ok()) << safe.status();
    ASSERT_EQ(safe->completed, 10);
    ASSERT_EQ(safe->evictions, 0) << seed;
    ASSERT_LE(PeakOf(arrivals, *safe), memory) << seed;
    const auto bold = RunOneWorker("mc_sf", arrivals, options);
    ASSERT_EQ(bold->completed, 10) << "what is thrown out comes back";
    ASSERT_FALSE(bold->looped);
    evictions += bold->evictions;
  }
  EXPECT_GT(evictions, 0) << "without a margin memory runs over";
}

TEST(OneWorker, RoundsTakeWhatTheirTokensCost) {
  KvRunOptions options;
  options.rule.memory = 100;
  options.round_seconds = [](int64_t tokens) { return 0.1 * static_cast<double>(tokens); };
  // 10 prompt tokens and then two rounds of one.
  const auto run = RunOneWorker("mc_sf", {{1, 10, 3}}, options);
  ASSERT_TRUE(run.ok());
  EXPECT_NEAR(run->done[0], 1 + 1.0 + 0.1 + 0.1, 1e-9);
  EXPECT_NEAR(run->mean_latency, 1.2, 1e-9);
}

TEST(OneWorker, ARequestThatCanNeverFitIsRefused) {
  KvRunOptions options;
  options.rule.memory = 10;
  EXPECT_EQ(RunOneWorker("mc_sf", {{0, 5, 6}}, options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio::sim
