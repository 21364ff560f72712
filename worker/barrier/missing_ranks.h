// The ranks that an error of the barrier names as missing.
//
// Purpose: a rank reports the neighbours that did not arrive. From the reports of all ranks the router can
// continue without a rank that is alive but unreachable for the others. The list is in the status's payload,
// so that it does not change the barrier's interface. Pure functions.
#ifndef BFIO_WORKER_BARRIER_MISSING_RANKS_H_
#define BFIO_WORKER_BARRIER_MISSING_RANKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace bfio::worker {

// Adds the missing ranks to an error. REQUIRES: `status` is an error.
absl::Status BlameMissing(absl::Status status, const std::vector<int32_t>& ranks);

// The ranks that BlameMissing added; empty if none.
std::vector<int32_t> MissingRanks(const absl::Status& status);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_MISSING_RANKS_H_
