// Chooses c, the cache to reserve per block, and makes a whole plan for a demand. A small c gives short
// chains and few concurrent jobs, a large c the opposite. For every c up to 512, and a sample of larger ones,
// this computes the placement (GBP-CR), the chains (GCA), the surrogate c K(c) of equation (14) and the
// bounds of the mean response of Theorem 3.7, and selects the best by one of them ("Serving Chain-structured
// Jobs with Large Memory Footprints", sections 3.1.3 and 3.2.3). Pure functions. Threads: any, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/occupancy.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// A composition: the placement of blocks, and the chains with their capacities.
struct ChainPlan {
  BlockPlacement placement;
  std::vector<ServerChain> chains;  // fastest first
  double rate = 0;                  // nu, jobs per second
};

// GBP-CR for c, then GCA. REQUIRES: as GreedyPlacement.
ChainPlan PlanWithReserve(absl::Span<const ChainServer> servers, const ChainService& service, int64_t c,
                          const Demand& demand);

// The result of one c for a demand.
struct ReserveCandidate {
  int64_t c = 0;
  int64_t disjoint_chains = 0;  // K(c)
  // Whether GBP-CR's own disjoint chains carry the demand at the target load: then c is feasible for the
  // surrogate.
  bool disjoint_meets = false;
  int64_t chains = 0;  // number of chains of GCA
  int64_t capacity = 0;
  double rate = 0;  // nu
  // Whether nu carries the demand at the target load.
  bool meets = false;
  // Bounds of the mean response time in seconds; infinity if nu does not exceed the demand.
  double lower = 0, upper = 0;

  double surrogate() const { return static_cast<double>(c) * static_cast<double>(disjoint_chains); }
};

// The largest c for which some server can host a block.
int64_t LargestReserve(absl::Span<const ChainServer> servers, const ChainService& service);

// Candidates in ascending order of c: every c up to 512, then in steps of 1/64, as long as some chain covers
// all blocks, and as long as `go_on`, called before each, returns true (empty: always). REQUIRES: CheckPool
// is OK, demand.rate > 0, 0 < target_load <= 1.
std::vector<ReserveCandidate> SweepReserve(absl::Span<const ChainServer> servers, const ChainService& service,
                                           const Demand& demand, const std::function<bool()>& go_on = {});

// The candidate with the least lower bound, the smallest c among equals: of those that meet the demand at the
// target load or, if there are none, of those that are stable; null if none is.
const ReserveCandidate* BestReserve(absl::Span<const ReserveCandidate> candidates);

// Why no composition serves the demand, with the missing amount: FAILED_PRECONDITION, one line. `candidates`
// are those of SweepReserve. REQUIRES: BestReserve found none.
absl::Status WhyImpossible(absl::Span<const ChainServer> servers, const ChainService& service,
                           const Demand& demand, absl::Span<const ReserveCandidate> candidates);

}  // namespace bfio::core
