// Requests that KV has kept out, first.
//
// Purpose: room.h's rule makes a request that waits for KV an ordinary candidate once it fits. A policy that
// chooses by size may then pass it over for ever; such a policy places it before it chooses. Where KV does
// not bind, this places nobody. Pure. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_POLICY_KV_OVERDUE_H_
#define BFIO_ROUTER_CORE_POLICY_KV_OVERDUE_H_

#include <vector>

#include "router/core/policy/room.h"

namespace bfio::core {

// Places every request that has waited Snapshot::hold_after_steps, fits some worker with a free slot, and may
// lack KV on one of them when its other slots are filled: oldest first, on the least loaded worker it fits.
// Appends to `plan` and marks it in `placed` (by waiting index). Cost: O(pool + G for each overdue request).
void PlaceKvOverdue(const Snapshot& snapshot, Room& room, std::vector<Assignment>& plan,
                    std::vector<char>& placed);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_KV_OVERDUE_H_
