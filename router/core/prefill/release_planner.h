// When waiting prompts are released to engines whose steps cannot be controlled, and to which rank: in waves
// over the ranks of a group that meets in a barrier.
//
// Purpose: such an engine computes the prompts that it holds in order, after its decodes, as many tokens per
// step as its budget allows. The router controls only the moment at which it sends a prompt. As in
// prefill_planner.h, a step that is dt longer delays every decoding request by dt, regardless of the number
// of ranks that compute prompts. So prompts are released together, with equal work for each rank. Prompts
// that fit beside the slowest rank's decodes are released at once.
//
// When. The *height* of a rank is the time that its prompts add to the group: their compute time, less the
// free rows and the time below the slowest rank in the steps that they need. A wave of height t delays N
// decodes by t. If all ranks had the height t, no release could be cheaper. If the waiting prompts fill the
// ranks to t' on average, N (t - t') of the delay is for ranks without prompts, and a later release with more
// prompts could avoid it. When these arrive is unknown, so a prompt is released when the prompts of its wave
// have waited that long in total (the ski rental rule: buy when the rent paid equals the price). If m prompts
// would wait that long until the next one arrives, m (m + 1) / (2 lambda) in the mean with lambda arrivals a
// second, they do not wait for it (the economic lot size). The height with the largest such waiting time
// beyond its cost is chosen. The ranks' present height is one of the candidates, so a prompt that adds
// nothing is not delayed. If arrivals use the share r of the budgets'
// capacity for prompts, a rank without a prompt wastes capacity that is needed, and each second of waiting
// delays 1 / (1 - r) other requests, so unevenness has the weight 1 - r.
//
// Which. A rank gets a prompt when its next step can compute more than it holds; until then the prompt can
// still go to another rank. Among the prompts up to the height the most urgent go first, by age over the root
// of the length as in prefill_planner.h, since by age over length long prompts starve where prompts take
// nearly all of the budgets; when slots are short, only the oldest. The longest goes to the rank whose
// decodes will take least time, if that rank stays within the height.
//
// Prefixes. A rank computes only the part of a prompt that its cache does not hold (WaitingPrompt::cached).
// That part counts for heights and, on the rank where the prompt adds least, for urgency. Of the ranks that
// stay within the height the prompt goes to the one where it costs the group least (prompt_placement.h). If a
// rank that takes no prompt now holds more of the prefix than every rank that does, the prompt waits for that
// rank, but no longer than computing the difference would take (the ski rental rule). Where slots are short
// it also lets younger prompts go first, as long as a rank without a free slot has more of its prefix than
// all ranks with one, for at most ReleaseSettings::longest_wait_s.
//
// Objectives. Where there are slots for all, a prompt does not wait for others if its objective for the first
// token can be met now, and perhaps not two steps later. The estimate has the steps of the prompts before it
// on its rank and its own, and its height. An objective that cannot be met is ignored, so it gives a request
// no advantage.
//
// Bound. A prompt that has waited N times its own height is not delayed for others any longer. Where there
// are slots for all, neither is a prompt that has waited for two steps and 16 times the height: with many
// decodes their total delay outweighs any wait for a first token. Where slots are short this does not apply,
// because uneven waves would lengthen the backlog. A prompt is released after more urgent ones: a younger one
// goes first only if it is shorter and has waited more than sqrt(its length / the older one's) times as long.
// In steps: where there are slots for all, a prompt is released after 2 + 16 h / (step time) steps, or later
// as long as every rank with a free slot holds prompts for a whole step. h is the most time that it and a
// step of prompts take beside decodes. Once it is released, it and the less than one step of prompts before
// it on its rank take as many steps as they fill.
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
