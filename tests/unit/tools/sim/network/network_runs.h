// Helpers for tests of networks: runs, and one number per seed for verdicts on growth.
#ifndef BFIO_TESTS_UNIT_SIM_NETWORK_RUNS_H_
#define BFIO_TESTS_UNIT_SIM_NETWORK_RUNS_H_

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tools/sim/network/growth.h"
#include "tools/sim/network/network_run.h"

namespace bfio::sim {

inline NetworkRun Simulate(const Network& network, const NetworkOptions& options) {
  absl::StatusOr<NetworkRun> run = RunNetwork(network, options);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *std::move(run) : NetworkRun();
}

// Growth of peaks, in tokens per slot, for the seeds 1 .. `seeds`.
inline std::vector<double> Rises(const Network& network, NetworkOptions options, uint64_t seeds) {
  std::vector<double> rises;
  for (options.seed = 1; options.seed <= seeds; ++options.seed)
    rises.push_back(PeakGrowth(Simulate(network, options).tokens, options.sample_every));
  return rises;
}

inline std::vector<double> Slopes(const Network& network, NetworkOptions options, uint64_t seeds) {
  std::vector<double> slopes;
  for (options.seed = 1; options.seed <= seeds; ++options.seed)
    slopes.push_back(SecondHalfSlope(Simulate(network, options).tokens, options.sample_every));
  return slopes;
}

inline double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Verdict on whether peaks grow by more than `share` of one engine's throughput: "bounded", "grows" or
// "undecided".
inline std::string Verdict(const Network& network, const NetworkOptions& options, uint64_t seeds,
                           double share) {
  const double engine = static_cast<double>(network.token_budget) / network.BatchTime(network.token_budget);
  return JudgeGrowth(Rises(network, options, seeds), share * engine).Name();
}

}  // namespace bfio::sim

#endif  // BFIO_TESTS_UNIT_SIM_NETWORK_RUNS_H_
