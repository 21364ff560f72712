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
  // cpu: its checkpoint.
  std::string model;
  // The router's: what a hang is measured against.
  absl::Duration step_timeout = absl::Seconds(1);
  // A fault's hang is what takes longer than its detection and this: a group forms in a second or two, and a
  // stream that comes back may find the slots taken by others that came back, for as long as the longest of
  // them runs (100 steps of 30 ms).
  absl::Duration grace = absl::Seconds(4);
  // Empty: all that are possible.
  std::vector<FaultKind> kinds;
  // Where the memory samples go; empty: nowhere.
  std::string memory_csv;
};

// Prints the schedule first and the table last; the exit code.
int RunChaos(const RunOptions& options);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_CHAOS_RUN_H_
