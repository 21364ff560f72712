// The commands of bfio_chaos. Each prints its results and returns the exit code: 1 when a guarantee or a
// bound is violated.
#pragma once

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
  // The workers are servers of engines, a third of which compute prompts for the others (cpu engine).
  bool pools = false;
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

// Load, faults, memory samples and an audit. Prints the schedule first and the table last.
int RunChaos(const RunOptions& options);

struct GreedyOptions {
  uint64_t seed = 1;
  int workers = 4;
  // Greedy peers at once, and the time with and without them, each.
  int peers = 3;
  absl::Duration duration = absl::Minutes(1);
  // Whether longer waits are a violation; not on a machine that runs other tests.
  bool bound_waits = true;
};

// Measures an ordinary load, and what each port answers others, without and with greedy peers, in turns.
// Prints waits, the router's memory and what the peers did. Bounds: no request is lost or refused, the 99th
// percentile of waits is at most twice that without them or 50 ms above, and the router grows by at most 64
// MiB for each of them and 256 MiB in all.
int MeasureGreedyPeers(const GreedyOptions& options);

}  // namespace bfio::chaos
