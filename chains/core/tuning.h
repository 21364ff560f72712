// How much cache to reserve per block: the tuning of c, and a whole plan for a demand.
//
// Purpose: small c gives short chains and few jobs at once, large c the opposite. For every c up to
// 512, and a sample of larger ones: placement (GBP-CR), chains (GCA), the surrogate c K(c) of equation (14)
// and Theorem 3.7's bounds of the mean response; then the best by one of them ("Serving Chain-structured Jobs
// with Large Memory Footprints", sections 3.1.3 and 3.2.3). Pure. Threads: any, no state.
#ifndef BFIO_CHAINS_CORE_TUNING_H_
#define BFIO_CHAINS_CORE_TUNING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/occupancy.h"
#include "chains/core/placement.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// A composition: where blocks are, and the chains with their capacities.
struct ChainPlan {
  BlockPlacement placement;
  std::vector<ServerChain> chains;  // fastest first
  double rate = 0;                  // nu, jobs per second
};

// GBP-CR for c, then GCA. REQUIRES: as GreedyPlacement.
ChainPlan PlanWithReserve(absl::Span<const ChainServer> servers, const ChainService& service, int64_t c,
                          const Demand& demand);

// What one c gives for a demand.
struct ReserveCandidate {
  int64_t c = 0;
  int64_t disjoint_chains = 0;  // K(c)
  // GBP-CR's own chains carry the demand at the target load: c is feasible for the surrogate.
  bool disjoint_meets = false;
  int64_t chains = 0;  // GCA's
  int64_t capacity = 0;
  double rate = 0;  // nu
  // nu carries the demand at the target load.
  bool meets = false;
  // Bounds of the mean response in seconds; infinity where nu does not exceed the demand.
  double lower = 0, upper = 0;

  double surrogate() const { return static_cast<double>(c) * static_cast<double>(disjoint_chains); }
};

// Largest c for which a server could host a block.
int64_t LargestReserve(absl::Span<const ChainServer> servers, const ChainService& service);

// Candidates in order of c: every c up to 512, then in steps of 1/64, as far as some chain covers all blocks,
// and as long as `go_on`, asked before each, says yes (empty: always).
// REQUIRES: CheckPool is OK, demand.rate > 0, 0 < target_load <= 1.
std::vector<ReserveCandidate> SweepReserve(absl::Span<const ChainServer> servers, const ChainService& service,
                                           const Demand& demand, const std::function<bool()>& go_on = {});

// The same for several demand rates, by rate: blocks are placed and chains composed once for all of them.
// REQUIRES: as SweepReserve, of every rate; demand.use_all unless the only rate is demand.rate, so that where
// blocks are is the same for all.
std::vector<std::vector<ReserveCandidate>> SweepReserves(absl::Span<const ChainServer> servers,
                                                         const ChainService& service, const Demand& demand,
                                                         absl::Span<const double> rates,
                                                         const std::function<bool()>& go_on = {});

enum class TuningGoal { kSurrogate, kLowerBound, kUpperBound };

// The best of the candidates, the smallest c among equals; null where none is feasible. By the surrogate:
// those whose disjoint chains meet the demand. By a bound: those that meet it at the target load, where there
// are none those that are stable.
const ReserveCandidate* BestReserve(absl::Span<const ReserveCandidate> candidates, TuningGoal goal);

// Why no composition serves the demand, with the amount that is missing: FAILED_PRECONDITION, one line.
// `candidates` are SweepReserve's. REQUIRES: BestReserve by the lower bound found none.
absl::Status WhyImpossible(absl::Span<const ChainServer> servers, const ChainService& service,
                           const Demand& demand, absl::Span<const ReserveCandidate> candidates);

}  // namespace bfio::core

#endif  // BFIO_CHAINS_CORE_TUNING_H_
