// One run of a study on a wide-area pool, as a JSON object, from which research/chains.py makes figures.
//
// Purpose: the setting of "Serving Chain-structured Jobs with Large Memory Footprints", section 4.1:
// BLOOM-176B on servers of a wide-area network (wide_area.h), Poisson jobs. Values that a run cannot give are
// null. Deterministic for the seed. Times in seconds. Threads: any, no state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "research/chains/chain_queue.h"
#include "research/chains/wide_area.h"

namespace bfio::sim {

struct PoolRun {
  RttMatrix rtts;
  int64_t servers = 20;
  // Share of the servers that have the fast GPU.
  double fast = 0.2;
  // c, the jobs for which every hosted block has cache; 0: the one with the smallest lower bound of the
  // response.
  int64_t reserve = 7;
  // Places blocks on every server, even if fewer would carry the demand.
  bool use_all = false;
  // Arriving jobs per second, at which the load of a composition should be `target_load`.
  double demand = 0.2;
  double target_load = 0.7;
  // If above 0, all servers are used, and jobs arrive at this share of the composition's rate instead of at
  // `demand`.
  double load = 0;
  int64_t jobs = 5000;
  uint64_t seed = 1;
};

// Block placement: c K(c) of GBP-CR, and of `orders` random orders of the servers, ascending.
nlohmann::ordered_json RunPlacement(const PoolRun& run, int64_t orders);

// Cache allocation: GCA's chains on all servers, the fastest first, the times of GBP-CR's disjoint chains,
// and the cache slots of each server, from which research/chains.py computes the concurrent jobs for a rate.
nlohmann::ordered_json RunChains(const PoolRun& run);

// Simulates jobs. `system` is "petals", "petals_slices", "bprr", or the name of a dispatcher of composed
// chains (dispatcher.h). INVALID_ARGUMENT for an unknown name.
absl::StatusOr<nlohmann::ordered_json> RunServe(const PoolRun& run, const std::string& system,
                                                const std::string& rule);

// Every c with its bounds and its simulated response, and the choice of each goal.
nlohmann::ordered_json RunTuning(const PoolRun& run);

// Means over the jobs, without the first tenth.
struct MeanTimes {
  double response = 0, wait = 0, service = 0;
};
MeanTimes MeansOf(absl::Span<const ServedJob> jobs);

}  // namespace bfio::sim
