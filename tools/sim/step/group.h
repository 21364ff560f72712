// Ranks that meet in a barrier after every batch, and a router that chooses the rank of each prompt.
//
// Purpose: measures what a long prompt on one rank costs the others, and what a router gains that balances
// prompt work. Every rank is an engine model under sarathi; a step takes as long as its slowest batch.
// Requests are placed at step boundaries, in order of arrival, on ranks with a free slot, and stay there.
// Deterministic. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_STEP_GROUP_H_
#define BFIO_TOOLS_SIM_STEP_GROUP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/step/one_engine.h"

namespace bfio::sim {

enum class PrefillPlan {
  // Each request goes to the rank with the fewest tokens. A prompt counts in full as soon as it is placed, so
  // computed and pending prompt tokens weigh the same.
  kBlind,
  // Each request goes to the rank with the fewest pending prompt tokens, and among those with the fewest
  // tokens.
  kBalanced,
  // As kBalanced, and no rank computes more prompt tokens in a step than the mean rank has pending
  // (equal_chunk.h): a long prompt on one rank is computed in chunks as large as the others' work.
  kEqualised,
};

struct StepGroupOptions {
  int32_t ranks = 4;
  PrefillPlan plan = PrefillPlan::kBlind;
  // Token budget of each rank.
  int64_t token_budget = 512;
  int64_t slots = 64;
  BatchCost cost;
};

struct StepGroupRun {
  std::vector<StepLife> lives;
  int64_t steps = 0, tokens = 0;
  double end_s = 0;
  // Share of all ranks' time in steps that is spent waiting for the slowest rank.
  double idle_fraction = 0;
};

// Runs until all requests have ended. `arrivals` are ordered by `at`. INVALID_ARGUMENT for an arrival of less
// than a token or out of order, or a group without ranks or slots.
absl::StatusOr<StepGroupRun> RunStepGroup(const std::vector<StepArrival>& arrivals,
                                          const StepGroupOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_STEP_GROUP_H_
