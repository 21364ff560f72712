// One run of a study on a wide-area pool, as a JSON object: what research/chains.py makes figures of.
//
// Purpose: the setting of "Serving Chain-structured Jobs with Large Memory Footprints", section 4.1:
// BLOOM-176B over servers drawn from a wide-area network (wide_area.h), Poisson jobs. What a run cannot give
// is null. Deterministic for the seed. Times in seconds. Threads: any, no state.
#ifndef BFIO_CHAINS_SIM_RUNS_H_
#define BFIO_CHAINS_SIM_RUNS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/sim/chain_queue.h"
#include "chains/sim/wide_area.h"
#include "nlohmann/json.hpp"

namespace bfio::sim {

struct PoolRun {
  RttMatrix rtts;
  int64_t servers = 20;
  // Share of them with the fast GPU.
  double fast = 0.2;
  // c, jobs that every hosted block has cache for; 0: the one with the least lower bound of the response.
  int64_t reserve = 7;
  // Blocks on every server, also where fewer would carry the demand.
  bool use_all = false;
  // Jobs per second, of which a composition is to be loaded by `target_load`.
  double demand = 0.2;
  double target_load = 0.7;
  // Above 0: all servers are used, and jobs come at this share of the composition's rate, not at `demand`.
  double load = 0;
  int64_t jobs = 5000;
  uint64_t seed = 1;
};

// Block placement: c K(c) of GBP-CR, and of as many random orders of the servers, ascending.
nlohmann::ordered_json RunPlacement(const PoolRun& run, int64_t orders);

// Cache allocation: jobs at once for `share` of the rate of all of GCA's chains.
nlohmann::ordered_json RunCache(const PoolRun& run, double share);

// Jobs served: `system` is composed (by the rule of that name: dispatcher.h), petals, petals_slices or bprr.
// INVALID_ARGUMENT when one is unknown.
absl::StatusOr<nlohmann::ordered_json> RunServe(const PoolRun& run, const std::string& system,
                                                const std::string& rule);

// Every c, with its bounds and its simulated response, and what each goal picks.
nlohmann::ordered_json RunTuning(const PoolRun& run);

// Means over jobs, the first tenth left out.
struct MeanTimes {
  double response = 0, wait = 0, service = 0;
};
MeanTimes MeansOf(absl::Span<const ServedJob> jobs);

}  // namespace bfio::sim

#endif  // BFIO_CHAINS_SIM_RUNS_H_
