// When waiting prompts are released to engines whose steps cannot be controlled, and to which rank: in waves
// over the ranks of a group that meets in a barrier. Such an engine computes the prompts that it holds in
// order, after its decodes, as many tokens per step as its budget allows. The router controls only the moment
// at which it sends a prompt. Prompts are released together, with equal work for each rank; prompts that fit
// beside the slowest rank's decodes are released at once. docs/design/prompts.md derives when, which, and the
// bound on a prompt's wait.
//
// Use: MeteredPolicy calls it for engines that run unmodified and meet in a barrier (GroupKind::kCoupled),
// with every event while requests wait.
//   ranks     decodes and decode_context by dead reckoning; prompts: those sent without a first token, of
//             which every step since has computed step_tokens less decodes; free_slots: slots, or fewer where
//             KV is short; cost: as fitted from the steps seen.
//   waiting   requests of one priority class, the highest class first; prefix hits count as computed.
// Send each rank its bindings in order. Count prompts that were sent and not confirmed among `prompts`.
//
// Pure and deterministic; any thread, no state. Units: tokens, seconds, steps.
#ifndef BFIO_ROUTER_CORE_PREFILL_RELEASE_PLANNER_H_
#define BFIO_ROUTER_CORE_PREFILL_RELEASE_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/prefill/prefill_planner.h"

namespace bfio::core {

struct ReleaseSettings {
  // The engine's budget: tokens of a rank's step, decodes included (vLLM: max_num_batched_tokens). Positive.
  int64_t step_tokens = 2048;
  // As PrefillSettings::growth.
  double growth = 0.3;
  // Where slots are short: how long a prompt lets others go first, if a rank without a slot has more of its
  // prefix than all ranks with one.
  double longest_wait_s = 0;
};

// REQUIRES: `waiting` is in pool order. Returns bindings in the order in which each rank must get them.
// O(waiting log waiting + ranks log ranks + bindings (waiting + ranks)) for each prompt that a rank gets, and
// O(ranks) for each that waits with `cached`.
std::vector<PrefillDecision::Binding> PlanRelease(absl::Span<const PrefillRank> ranks,
                                                  absl::Span<const WaitingPrompt> waiting,
                                                  const PrefillTraffic& traffic,
                                                  const ReleaseSettings& settings);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_RELEASE_PLANNER_H_
