// An experiment of bfio_sim, run inside a test.
//
// Purpose: what the tests of experiments have in common. Threads: one, besides the runner's own.
#ifndef BFIO_TESTS_TESTING_EXPERIMENT_RUN_H_
#define BFIO_TESTS_TESTING_EXPERIMENT_RUN_H_

#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/runner.h"

namespace bfio::sim {

using Experiment = absl::StatusOr<Findings> (*)(const ExperimentContext&);

// Fails the test when the experiment fails.
inline Findings RunWith(Experiment experiment, ExperimentContext context, int32_t threads = 1) {
  const Runner runner(threads, {}, {});
  context.runner = &runner;
  absl::StatusOr<Findings> findings = experiment(context);
  EXPECT_TRUE(findings.ok()) << findings.status();
  return findings.ok() ? *std::move(findings) : Findings();
}

}  // namespace bfio::sim

#endif  // BFIO_TESTS_TESTING_EXPERIMENT_RUN_H_
