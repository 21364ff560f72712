// Ranks that meet in a barrier after every batch, and a router that says which rank computes whose prompt.
//
// Purpose: what a long prompt on one rank costs the others, and what a router gains that plans prompts as
// load. Every rank is an engine model under sarathi; a step takes as long as its slowest batch. Requests are
// placed at step boundaries, in the order of arrival, on ranks with a free slot, and stay. Deterministic.
// Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_STEP_GROUP_H_
#define BFIO_TOOLS_SIM_STEP_GROUP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/step/one_engine.h"

namespace bfio::sim {

enum class PrefillPlan {
  // To the rank with the fewest tokens, prompts counted whole as soon as they are placed: a prompt that is
  // computed and one that is not weigh the same.
  kBlind,
  // To the rank with the fewest prompt tokens to compute, then the fewest tokens.
  kBalanced,
  // So, and no rank computes more prompt tokens in a step than the mean rank has left (equal_chunk.h): a long
  // prompt on one rank is taken in pieces as large as the others' work.
  kEqualised,
};

struct StepGroupOptions {
  int32_t ranks = 4;
  PrefillPlan plan = PrefillPlan::kBlind;
  // Of each rank.
  int64_t token_budget = 512;
  int64_t slots = 64;
  BatchCost cost;
};

struct StepGroupRun {
  std::vector<StepLife> lives;
  int64_t steps = 0, tokens = 0;
  double end_s = 0;
  // Of all ranks' time in steps, the share spent waiting for the slowest.
  double idle_fraction = 0;
};

// Until all have ended. `arrivals` in the order of `at`. INVALID_ARGUMENT for an arrival of less than a token
// or out of order, or a group without ranks or slots.
absl::StatusOr<StepGroupRun> RunStepGroup(const std::vector<StepArrival>& arrivals,
                                          const StepGroupOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_STEP_GROUP_H_
