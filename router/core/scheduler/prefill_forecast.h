// The prompt tokens that ranks will still have to compute when a plan's step begins.
//
// Purpose: a plan is for a step that others precede, and their plans are known: each rank computes its
// prompts up to the level of each of them, as a worker does. Ends in these steps are not known, and none are
// assumed. Pure. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_PREFILL_FORECAST_H_
#define BFIO_ROUTER_CORE_SCHEDULER_PREFILL_FORECAST_H_

#include "router/core/prefill/prefill_view.h"
#include "router/core/scheduler/group_accounts.h"

namespace bfio::core {

// False when some rank computes prompts whole, or has not reported the cost of its batches. `view` is filled
// but for the ranks' free slots. O(prompts on ranks * steps in between).
bool ForecastPrefill(const GroupAccounts& accounts, const PlanSteps& steps, int64_t reported_step,
                     PrefillView& view);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_PREFILL_FORECAST_H_
