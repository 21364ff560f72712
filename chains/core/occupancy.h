// How many jobs a system of chains holds on average when the fastest free chain is always taken (JFFC).
//
// Purpose: Theorem 3.7's bounds and the exact value for two chains (Appendix A.3) of "Serving
// Chain-structured Jobs with Large Memory Footprints". Jobs arrive as a Poisson process, sizes are
// exponential, chain l serves up to c_l jobs at once, each at rate mu_l. Divide by the arrival rate for the
// mean response time (Little).
// All sums have positive terms only and are scaled, so thousands of slots and loads near 1 lose no digits;
// rates may differ by a factor of 1e18, what CheckPool lets through. Pure. Threads: any, no state.
#ifndef BFIO_CHAINS_CORE_OCCUPANCY_H_
#define BFIO_CHAINS_CORE_OCCUPANCY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/composition.h"

namespace bfio::core {

// A chain as queueing theory sees it.
struct ChainRate {
  double rate = 0;       // mu
  int64_t capacity = 0;  // c
};

std::vector<ChainRate> Rates(absl::Span<const ServerChain> chains);
// nu
double TotalRate(absl::Span<const ChainRate> chains);

struct Occupancy {
  double lower = 0, upper = 0;  // mean jobs, waiting and in service
};

// Both birth-death processes: jobs on the fastest chains bound from below, on the slowest from above. Equal
// where all chains are equally fast (M/M/C). O(sum of capacities)
// at most, less where few jobs are likely.
// REQUIRES: 0 < arrivals < TotalRate(chains), rates and capacities above 0. Any order.
Occupancy OccupancyBounds(absl::Span<const ChainRate> chains, double arrivals);

// The mean itself, for two chains. O(c_1 c_2). REQUIRES: as OccupancyBounds; fast.rate >= slow.rate.
double TwoChainOccupancy(const ChainRate& fast, const ChainRate& slow, double arrivals);

}  // namespace bfio::core

#endif  // BFIO_CHAINS_CORE_OCCUPANCY_H_
