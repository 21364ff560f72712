// A lower bound on the objective of every choice, hence a proven gap.
//
// Purpose: relaxations that are cheap and stay tight where decisions are hard to beat.
//   A worker that gets nothing keeps its cost whatever is chosen: for the paper's J its distance from F_h,
//   the largest load before the decision, since no maximum ends below that. A worker with free slots costs at
//   least what the best items of the whole pool would make it cost, were it alone: other workers may be given
//   the same items. One slot is solved exactly that way, two for a small pool (paper's J), more are bounded
//   by 0. Weights are credited to every worker that might have them, or once each and apart from the costs,
//   whichever bounds more. For the paper's J a maximum above F_h costs G a token, and belongs to one worker:
//   each of the open workers is charged an equal share of what it exceeds F_h by, which in sum is no more.
//   For the paper's J also: the sum of the loads grows by no more than the U largest items.
// KV, classes and "each item once" are dropped, so the bound holds for every feasible choice that fills as
// many slots. Cost: one look at the pool per free slot. Threads: one, the pricing's: it opens slots there.
#ifndef BFIO_ROUTER_CORE_SOLVER_BOUND_H_
#define BFIO_ROUTER_CORE_SOLVER_BOUND_H_

#include <vector>

#include "router/core/solver/instance.h"
#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/pool_index.h"
#include "router/core/solver/quadratic_pricing.h"

namespace bfio::core {

// REQUIRES: pricing and index were reset with nothing admitted. `pricing` must be reset afterwards.
double LowerBound(const Instance& instance, PaperPricing& pricing, const PoolIndex& index);
double LowerBound(const Instance& instance, QuadraticPricing& pricing, const PoolIndex& index);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_BOUND_H_
