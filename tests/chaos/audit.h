// What a chaos run must show, and whether it did.
//
// Purpose: the verdict over the ledger, the faults and the memory samples; a short table. Pure.
#ifndef BFIO_TESTS_CHAOS_AUDIT_H_
#define BFIO_TESTS_CHAOS_AUDIT_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/memory_watch.h"

namespace bfio::chaos {

// A fault's beginning or end, by the monotonic clock, and how long streams may stand still from then on.
struct Disturbance {
  absl::Time at;
  absl::Duration patience;
};

struct AuditInput {
  const Ledger& ledger;
  const MemoryWatch& memory;
  // In the order of their times; and when the run began.
  std::vector<Disturbance> disturbances;
  absl::Time start;
  // What a stream may stand still without any.
  absl::Duration patience;
  // Programs that ended unasked, admin counters that are not 0, and the like.
  std::vector<std::string> other;
  // Above these, memory is not bounded: the last third's median less the first's, and the peak.
  int64_t max_growth_kib = 64 << 10, max_kib = 1 << 20;
};

struct Verdict {
  std::vector<std::string> violations;
  std::string table;
};
Verdict Audit(const AuditInput& input);

// The value at share q of the sorted values, rounded down; 0 of none.
double Quantile(std::vector<float> values, double q);

// Requests that were ended because workers died with them, although fewer faults fell into their lives than
// it takes (router::Suspicion::kGuilty), with `patience` for what a fault does to show.
std::vector<Suspect> WronglyEnded(const std::vector<Suspect>& suspects,
                                  const std::vector<Disturbance>& disturbances, absl::Duration patience);

// Gaps that no disturbance explains: longer than `patience`, and going on for longer than each disturbance in
// them may last.
std::vector<Gap> Hangs(const std::vector<Gap>& gaps, const std::vector<Disturbance>& disturbances,
                       absl::Duration patience);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_AUDIT_H_
