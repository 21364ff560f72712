// A lower bound on the objective of every plan, which gives a proven gap.
//
// Purpose: relaxations that are cheap to compute, and tight where plans are hard to improve.
//   A worker without free slots costs the same in every plan: for the paper's J the distance of its time from
//   F_h, the largest time before the decision, since no maximum falls below that. A worker with free slots
//   costs at least what the best items of the whole pool would make it cost alone: several workers may get
//   the same items. One slot is solved exactly in this way, for the paper's J also two with a small pool;
//   more are bounded by 0. Weights are credited to every worker that might have them, or once each and
//   separately from the costs, whichever gives the larger bound. For the paper's J a maximum above F_h costs
//   G per token and belongs to one worker: each of the open workers is charged an equal share of its excess
//   over F_h, so the sum is not larger than the true cost. For the paper's J also: the sum of the loads grows
//   by no more than the U largest items.
// KV, classes and "each item once" are relaxed, so the bound holds for every feasible plan that fills as many
// slots. Cost: one pool search per free slot. Threads: that of the pricing, whose slots it opens.
#ifndef BFIO_ROUTER_CORE_SOLVER_BOUND_H_
#define BFIO_ROUTER_CORE_SOLVER_BOUND_H_

#include <vector>

#include "router/core/solver/instance.h"
#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/pool_index.h"
#include "router/core/solver/square_pricing.h"

namespace bfio::core {

// REQUIRES: pricing and index were reset with no item admitted. `pricing` must be reset afterwards.
double LowerBound(const Instance& instance, PaperPricing& pricing, const PoolIndex& index);
double LowerBound(const Instance& instance, SquarePricing& pricing, const PoolIndex& index);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_BOUND_H_
