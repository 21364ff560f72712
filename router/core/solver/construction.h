// The initial feasible plan.
//
// Purpose: the oldest U items, largest first, each to the least loaded worker with free capacity (LPT;
// Graham, 1969). When KV does not let all of these in, the items enter in pool order instead, so that the
// oldest is never kept out by a younger one. Cost: O(U log U + U G), and O(|items|) more when KV binds. A
// deadline ends both with what is placed by then, at least one item that was tried; classes stay strict.
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

// Places waiting items, in pool order, as long as any fits: work conservation after KV has moved.
void FillInOrder(Allocation& allocation, Run& run);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_CONSTRUCTION_H_
