// The exact mean number of jobs of two chains under JFFC (Appendix A.3 of "Serving Chain-structured Jobs with
// Large Memory Footprints"), between the bounds of chains/core/occupancy.h. Pure. Threads: any.
#pragma once

#include "chains/core/occupancy.h"

namespace bfio::core {

// O(c_1 c_2). REQUIRES: as OccupancyBounds; fast.rate >= slow.rate.
double TwoChainOccupancy(const ChainRate& fast, const ChainRate& slow, double arrivals);

}  // namespace bfio::core
