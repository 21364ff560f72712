// A short chaos run with real processes; tests/chaos/run does longer ones.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/chaos/runs.h"
#include "tests/testing/process.h"

namespace bfio::chaos {
namespace {

RunOptions Options() {
  RunOptions options;
  options.step_timeout = testing::kSlowdown * absl::Seconds(1);
  options.rate = 200.0 / testing::kSlowdown;
  // BFIO_CHAOS_SEED=N repeats a run, or does another one.
  if (const char* seed = std::getenv("BFIO_CHAOS_SEED")) options.seed = std::strtoull(seed, nullptr, 10);
  return options;
}

TEST(Chaos, EightWorkersKeepEveryGuarantee) {
  RunOptions options = Options();
  options.duration = absl::Minutes(2);
  EXPECT_EQ(RunChaos(options), 0);
}

TEST(Chaos, AModelsTokensAreThoseOfAnUndisturbedRun) {
  RunOptions options = Options();
  options.engine = "cpu";
  options.model = "tests/golden/qwen3";
  options.workers = 3;
  options.rate = 30.0 / testing::kSlowdown;
  options.duration = absl::Seconds(40);
  options.mean_gap = absl::Seconds(4);
  EXPECT_EQ(RunChaos(options), 0);
}

TEST(Chaos, APromptComputedElsewhereIsDecodedOnceAndRightly) {
  RunOptions options = Options();
  options.engine = "cpu";
  options.model = "tests/golden/qwen3";
  options.pools = true;
  options.workers = 6;
  options.rate = 30.0 / testing::kSlowdown;
  options.duration = absl::Minutes(2);
  EXPECT_EQ(RunChaos(options), 0);
}

TEST(Chaos, GreedyPeersCostNobodyARequest) {
  const int violations = MeasureGreedyPeers({.duration = absl::Minutes(1), .bound_waits = false});
  // Under a sanitizer the peers take all processors, and memory is not the program's: its findings count
  // alone.
  EXPECT_TRUE(violations == 0 || testing::kSlowdown > 1);
}

}  // namespace
}  // namespace bfio::chaos
