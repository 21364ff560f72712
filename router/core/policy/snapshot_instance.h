// Converts a snapshot to an instance of the integer program. The one translation from a policy's input
// (model/snapshot.h) to the solver's (solver/instance.h): bf_io, bf_io_auto and the LP files of the simulator
// describe the same program. Workers come from `free`, including what the policy has placed already. Weights,
// precounted tokens, target and discount are left at their defaults. Pure. Threads: any, no state.
#pragma once

#include <cstdint>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

// Looks as far ahead as both the outlook and `horizon` reach.
void FillInstance(const Snapshot& snapshot, const FreeCapacity& free, int32_t horizon, Instance& instance);

}  // namespace bfio::core
