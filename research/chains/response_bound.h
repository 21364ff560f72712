// A mean response that no placement of blocks and no routing of jobs can go below.
//
// Purpose: bounds the gain of any better system on a pool. The bound ignores waiting, and does not require
// ranges that are contiguous or hosted whole:
//   - A job that has y_j of its blocks computed on server j takes at least sum of y_j (tau^p_j + tau^c_j /
//     b_j), where b_j is the most blocks that a visit can have: floor(M_j / (s_m + s_c)).
//   - Blocks must be somewhere: sum of y_j = L, y_j <= b_j. The least such time is T_min.
//   - By Little's law jobs hold demand x T_min x y_j cache slots of server j on average, beside at least y_j
//     blocks: y_j (s_m + s_c demand T_min) <= M_j, for the means y_j over jobs.
// The bound is the least time for means within these limits. Pure. Threads: any, no state.
#pragma once

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::sim {

// In the unit of the servers' times; `demand` in jobs per that unit. Infinite if no system carries the
// demand.
double LeastResponse(absl::Span<const core::ChainServer> servers, const core::ChainService& service,
                     double demand);

}  // namespace bfio::sim
