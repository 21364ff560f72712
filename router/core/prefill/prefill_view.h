// What a policy sees of prompts on the ranks of a group that meets in a barrier.
//
// Purpose: what PlanPrefill asks about the ranks and the traffic, as they will be at the plan's step; what
// waits is Snapshot::waiting. Plain data. Tokens, seconds, steps. Threads: any.
#ifndef BFIO_ROUTER_CORE_PREFILL_PREFILL_VIEW_H_
#define BFIO_ROUTER_CORE_PREFILL_PREFILL_VIEW_H_

#include <vector>

#include "router/core/prefill/prefill_planner.h"

namespace bfio::core {

struct PrefillView {
  // By rank; free_slots are those of Snapshot::workers.
  std::vector<PrefillRank> ranks;
  PrefillTraffic traffic;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_PREFILL_VIEW_H_
