// One chaos run: load, faults, memory samples, audit.
#ifndef BFIO_TESTS_CHAOS_CHAOS_RUN_H_
#define BFIO_TESTS_CHAOS_CHAOS_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/chaos/schedule.h"

namespace bfio::chaos {

struct RunOptions {
  uint64_t seed = 1;
  absl::Duration duration = absl::Minutes(2);
  absl::Duration mean_gap = absl::Seconds(3.5);
  int workers = 8;
  double rate = 200;
  // "sim" or "cpu".
  std::string engine = "sim";
  // Checkpoint of the cpu engine.
  std::string model;
  // The router's step timeout, on which the limit for pauses depends.
  absl::Duration step_timeout = absl::Seconds(1);
  // Additional time for recovery from a fault. A group forms in a second or two, and a stream that resumes
  // may find the slots taken by other resumed streams, for as long as the longest of them runs (100 steps of
  // 30 ms).
  absl::Duration grace = absl::Seconds(4);
  // Empty: all that are possible.
  std::vector<FaultKind> kinds;
  // File for the memory samples; empty: none.
  std::string memory_csv;
};

// Prints the schedule first and the table last; returns the exit code.
int RunChaos(const RunOptions& options);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_CHAOS_RUN_H_
