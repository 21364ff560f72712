// Prompts as load: what is still to be computed of them, and how much of it a step takes.
//
// Purpose: a rank that computes a piece of a prompt holds up all that meet it in the barrier. So prompt
// tokens that a rank has still to compute count in the plan like load, and pieces are given one size on all
// ranks. Both need workers that take prompts in pieces and say so in their reports; without such reports
// nothing changes. Pure. Tokens and steps. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_PREFILL_PLAN_H_
#define BFIO_ROUTER_CORE_SCHEDULER_PREFILL_PLAN_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace bfio::core {

struct PrefillOptions {
  // What a prompt token that is not computed yet counts as, in tokens of load, beside the one that it is. It
  // is computed once where a resident token is read in every step of its request: seconds per prompt token,
  // over seconds per resident token and steps of a request. 0: nothing. At least 0, finite.
  double weight = 0;
  // Plans say how many prompt tokens a rank may compute in a step (Plan::prefill_piece).
  bool pieces = false;
};

// Of a rank, after a step.
struct PrefillReport {
  // Prompt tokens of its requests that are not computed yet, and tokens of its next step at most; at least 0.
  int64_t pending_tokens = 0;
  int64_t token_budget = 0;

  friend bool operator==(const PrefillReport&, const PrefillReport&) = default;
};

// What a plan for a later step has to reckon with.
struct PrefillAhead {
  // Requests that the rank runs, prompts on their way to it, and whole steps until the plan's.
  int64_t active = 0;
  int64_t inflight_tokens = 0;
  int64_t steps = 0;
  // Plan::prefill_piece of these steps.
  std::optional<int64_t> piece;
};

// Prompt tokens that the rank will have to compute when the plan's step begins: what it has, less what its
// steps until then take.
int64_t PendingAhead(const PrefillReport& report, const PrefillAhead& ahead);

// A piece for all ranks: as much as the mean rank has to compute, so that one with more takes no more time
// than that, but at least kLeastPiece. Nothing where no rank has anything to compute. By rank.
std::optional<int64_t> EqualPiece(absl::Span<const int64_t> pending);

// A step costs its weights whether it has 1 row or 64: smaller pieces save no time. Not tuned.
inline constexpr int64_t kLeastPiece = 64;
// As workers have it (worker/scheduler/batch.h): however many decodes there are, prompts get so many tokens.
inline constexpr int64_t kLeastPrefillRows = 16;

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_PREFILL_PLAN_H_
