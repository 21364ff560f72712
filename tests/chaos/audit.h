// The audit of a chaos run.
//
// Purpose: a verdict from the ledger, the faults and the memory samples; a short table. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/memory_watch.h"

namespace bfio::chaos {

// A fault's beginning or end, by the monotonic clock, and how long streams may pause from then on.
struct Disturbance {
  absl::Time at;
  absl::Duration patience;
};

struct AuditInput {
  const Ledger& ledger;
  const MemoryWatch& memory;
  // In the order of their times; and the start of the run.
  std::vector<Disturbance> disturbances;
  absl::Time start;
  // How long a stream may pause without a disturbance.
  absl::Duration patience;
  // Other violations: programs that ended by themselves, admin counters that are not 0.
  std::vector<std::string> other;
  // Above these, memory is not bounded: the last third's median minus the first's, and the peak.
  int64_t max_growth_kib = 64 << 10, max_kib = 1 << 20;
};

struct Verdict {
  std::vector<std::string> violations;
  std::string table;
};
Verdict Audit(const AuditInput& input);

// The value at share q of the sorted values, rounded down; 0 if there are none.
double Quantile(std::vector<float> values, double q);

// Requests that were ended because workers died while running them, although fewer faults occurred during
// their lifetimes than are required (router::Suspicion::kBlamed). `patience`: the time until a fault takes
// effect.
std::vector<Suspect> WronglyEnded(const std::vector<Suspect>& suspects,
                                  const std::vector<Disturbance>& disturbances, absl::Duration patience);

// Gaps that no disturbance explains: longer than `patience`, and continuing for longer than the patience of
// each disturbance in them.
std::vector<Gap> Hangs(const std::vector<Gap>& gaps, const std::vector<Disturbance>& disturbances,
                       absl::Duration patience);

}  // namespace bfio::chaos
