// A demand that alternates between two values, on chains that keep their composition or are recomposed.
//
// Purpose: shows how a change of demand slows a composition down, and what the router's change-over
// (chains/core/tuning.h) gains, with its pause: all chains end their jobs, and then load other blocks, while
// arriving jobs wait. Jobs that have not ended in time continue in the new chains; computing their tokens
// again costs nothing here. Deterministic for the seed. Times in seconds. Threads: any, no state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "research/chains/runs.h"

namespace bfio::sim {

struct DriftRun {
  // Only rtts, servers, fast and seed are used.
  PoolRun pool;
  // The two demands, as shares of the largest rate that a composition of the pool has.
  double low = 0.2, high = 0.9;
  // Seconds. A cycle is `hold` at the low demand, `ramp` up, `hold` at the high demand, `ramp` down.
  double hold = 3600, ramp = 3600;
  int64_t cycles = 2;
  // Seconds between the end of the drained chains and the start of the new ones.
  double loading = 60;
};

// `tuning`: "low" or "high" keeps the composition for that demand, "retuned" begins with that for the low
// one. INVALID_ARGUMENT for another word; FAILED_PRECONDITION if the pool has no chain.
absl::StatusOr<nlohmann::ordered_json> RunDrift(const DriftRun& run, const std::string& tuning);

}  // namespace bfio::sim
