// The mean number of jobs in a system of chains in which jobs take the fastest free chain (JFFC). The bounds
// of Theorem 3.7 of "Serving Chain-structured Jobs with Large Memory Footprints". Jobs arrive as a Poisson
// process, sizes are exponential, and chain l serves up to c_l jobs at the same time, each at rate mu_l.
// Divided by the arrival rate the result is the mean response time (Little's law). All sums have only
// positive terms and are scaled, so thousands of slots and loads near 1 lose no digits; rates may differ by a
// factor of 1e18, the most that CheckPool permits. Pure functions. Threads: any, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/composition.h"

namespace bfio::core {

// The properties of a chain in the queueing model.
struct ChainRate {
  double rate = 0;       // mu
  int64_t capacity = 0;  // c
};

std::vector<ChainRate> Rates(absl::Span<const ServerChain> chains);
// nu: the rate of all chains when full.
double TotalRate(absl::Span<const ChainRate> chains);

struct Occupancy {
  double lower = 0, upper = 0;  // mean jobs, waiting and in service
};

// Bounds from two birth-death processes: jobs on the fastest chains give the lower bound, jobs on the slowest
// the upper. They are equal if all chains are equally fast (M/M/C). At most O(sum of capacities), less where
// large numbers of jobs are improbable. REQUIRES: 0 < arrivals < TotalRate(chains), rates and capacities
// above 0. Chains in any order.
Occupancy OccupancyBounds(absl::Span<const ChainRate> chains, double arrivals);

}  // namespace bfio::core
