// The prompts on the ranks of a group that meets in a barrier, for a policy: PlanPrefill's input about ranks
// and traffic, as of the plan's step; waiting prompts are in Snapshot::waiting. Units: tokens, seconds,
// steps.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cost/group_time.h"
#include "router/core/prefill/prefill_planner.h"

namespace bfio::core {

struct PrefillView {
  // By rank; free_slots as in Snapshot::workers.
  std::vector<PrefillRank> ranks;
  PrefillTraffic traffic;
  // What a step costs all ranks beside their batches; the default where it is unknown.
  GroupTerms terms;
  // Token budget of a rank's step, including decodes; the minimum over the ranks.
  int64_t token_budget = 0;
  // Ranks fill their budget independently of the plan, which can only release prompts.
  bool releases_only = false;
};

}  // namespace bfio::core
