// The initial feasible plan.
//
// Purpose: the oldest U items, largest first, each to the least loaded worker with free capacity (LPT;
// Graham, 1969). When KV memory does not suffice for all of these, the items enter in pool order instead, so
// that no younger item keeps the oldest out. Cost: O(U log U + U G), and O(|items|) more when KV binds. After
// a deadline both stop with the items placed so far; at least one item has been tried. Classes stay strict.
// Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_SOLVER_CONSTRUCTION_H_
#define BFIO_ROUTER_CORE_SOLVER_CONSTRUCTION_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/run.h"

namespace bfio::core {

// REQUIRES: nothing is placed yet. `scratch` is overwritten.
void Construct(Allocation& allocation, std::vector<int32_t>& scratch, Run& run);

// Places waiting items in pool order as long as one fits. Keeps work conservation after exchanges have freed
// KV.
void FillInOrder(Allocation& allocation, Run& run);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_CONSTRUCTION_H_
