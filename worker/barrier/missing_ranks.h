// Which ranks an error of the barrier blames.
//
// Purpose: a rank reports the neighbours that did not arrive; the router, which gets the reports of
// all, can then continue without a rank that is alive and that the others do not reach. The list travels in
// the status's payload, so that the barrier's interface stays the same. Pure.
#ifndef BFIO_WORKER_BARRIER_MISSING_RANKS_H_
#define BFIO_WORKER_BARRIER_MISSING_RANKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace bfio::worker {

// REQUIRES: an error.
absl::Status BlameMissing(absl::Status status, const std::vector<int32_t>& ranks);

// Empty where the error names no rank.
std::vector<int32_t> MissingRanks(const absl::Status& status);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_MISSING_RANKS_H_
