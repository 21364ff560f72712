// The prompt tokens that ranks will still have to compute when a plan's step begins. The steps before a
// plan's own step are planned already. In each of them a rank computes prompts up to the level of that step's
// plan, as a worker does. Completions in these steps are not known, and none are assumed. Pure. Threads: any,
// no state.
#pragma once

#include "router/core/prefill/prefill_view.h"
#include "router/core/scheduler/group_accounts.h"

namespace bfio::core {

// False when a rank computes prompts whole, or has not reported the cost of its batches. Fills `view` except
// for the ranks' free slots. O(prompts on ranks * steps in between).
bool ForecastPrefill(const GroupAccounts& accounts, const PlanSteps& steps, PrefillView& view);

}  // namespace bfio::core
