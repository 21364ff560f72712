// Which waiting prompt goes to which rank, and up to which step time ranks compute prompts: one plan for
// prompts and decodes of a group that meets in a barrier.
//
// Purpose: what is minimised is the mean number of requests in the system, that is, by Little's law, the mean
// time from arrival to end. A step that is dt longer delays all N requests that decode by dt and computes
// prompt tokens for dt on each of the m ranks that have some, so prompts are cheapest
//   - below the time that the slowest rank needs anyway: these tokens are free;
//   - together: m prompts on m ranks share what one would pay alone.
// Waiting for company costs the prompts that wait. With arrivals at rate lambda and a mean prompt of S
// seconds, k prompts under way at once wait k / lambda each, and each pays N S / k to lengthened steps; their
// sum is least at k = sqrt(lambda N S). PrefillSettings::pace trades the two.
//
// The rule: every prompt under way gets the mean prompt's share of a horizon tau = k / lambda
// per step, so a long prompt takes longer and does not hold up a step in proportion to its length; ranks are
// filled to the level that this needs (level.h); the steps that a plan takes to arrive come on top of tau,
// since a prompt that is on its way shares nothing yet; a prompt leaves the pool for a rank only when that
// rank has none, the shortest first by age over length.
//
// Pure and deterministic; any thread, no state. Tokens, seconds, steps.
#ifndef BFIO_ROUTER_CORE_PREFILL_PREFILL_PLANNER_H_
#define BFIO_ROUTER_CORE_PREFILL_PREFILL_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"
#include "router/core/model/request.h"
#include "router/core/prefill/level.h"

namespace bfio::core {

struct PrefillSettings {
  // Weight of prompts' waits against decodes' in k: 1 is the mean time from arrival to end; below it, first
  // tokens come sooner and steps are less even. Positive.
  double pace = 0.5;
  // Most prompts under way, per rank: with one each all ranks share a longer step, and more only wait.
  // Positive.
  double prompts_per_rank = 1;
  // Fewest steps that the mean prompt is spread over: a bound on how much longer one step is than the next.
  double least_steps = 4;
  // The level rises while this share of the ranks that could have a prompt shares the rise. In (0, 1].
  double sharing = 0.9;
  // Share of a mean output by which each request of a rank is taken to grow when prompts are bound: half of a
  // mean life would be its middle, less weighs the near future more. At least 0.
  double growth = 0.3;
};

// What has been seen of the traffic lately.
struct PrefillTraffic {
  // Positive where anything waits.
  double arrivals_per_s = 0;
  double mean_prompt_tokens = 0;
  // Of computing a prompt beside decodes: a s + k1 s^2 / 2.
  double mean_prefill_s = 0;
  double mean_output_tokens = 0;
  // A mean step.
  double step_s = 0;
  // Steps between a plan and the step that it is for.
  int32_t lag_steps = 0;
};

struct PrefillRank {
  BatchCost cost;
  int64_t decodes = 0;
  double decode_context = 0;
  // Requests that it can still take.
  int64_t free_slots = 0;
  // Those that it has bound, in order.
  std::vector<PromptLeft> prompts;
  // Seconds since the first of them was bound.
  double first_bound_for_s = 0;
};

struct WaitingPrompt {
  int64_t tokens = 0;
  double waited_s = 0;
};

struct PrefillDecision {
  struct Binding {
    // Index into `waiting`.
    int32_t waiting = 0;
    WorkerIndex rank = 0;
  };
  std::vector<Binding> bindings;
  // Ranks compute prompt tokens as long as their step ends by then; infinite where nothing decodes, and so
  // nothing is held up.
  double level_s = 0;
};

// `waiting` in the order of the pool. O(40 (ranks + bound prompts) + waiting log waiting).
PrefillDecision PlanPrefill(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                            const PrefillTraffic& traffic, const PrefillSettings& settings);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_PREFILL_PLANNER_H_
