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

struct AuditInput {
  const Ledger& ledger;
  const MemoryWatch& memory;
  // When faults began and ended, by the monotonic clock, ascending.
  std::vector<absl::Time> disturbances;
  // A stream may stand still for so long after a disturbance; longer is a hang.
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

// Gaps that no disturbance explains: longer than `patience`, and with no disturbance in them but in their
// first part, from which to their end it is longer than `patience` still.
std::vector<Gap> Hangs(const std::vector<Gap>& gaps, const std::vector<absl::Time>& disturbances,
                       absl::Duration patience);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_AUDIT_H_
