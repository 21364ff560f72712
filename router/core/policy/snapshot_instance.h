// A snapshot as an instance of the integer program.
//
// Purpose: the one translation between what a policy sees (model/snapshot.h) and what the solver is asked
// (solver/instance.h): bf_io, bf_io_auto and the LP files of the simulator describe the same program. Workers
// come from `room`, so that a worker that is held for an overdue request is closed. Worths, credits, target
// and discount are left at their defaults. Pure. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_POLICY_SNAPSHOT_INSTANCE_H_
#define BFIO_ROUTER_CORE_POLICY_SNAPSHOT_INSTANCE_H_

#include <cstdint>

#include "router/core/model/snapshot.h"
#include "router/core/policy/room.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

// Looks as far ahead as both the outlook and `horizon` reach.
void FillInstance(const Snapshot& snapshot, const Room& room, int32_t horizon, Instance& instance);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_SNAPSHOT_INSTANCE_H_
