// Which waiting prompt goes to which rank, and up to which step time ranks compute prompts: one plan for
// prompts and decodes of a group that meets in a barrier.
//
// Purpose: what is minimised is the mean number of requests in the system, that is, by Little's law, the mean
// time from arrival to end. A step that is dt longer delays all N requests that decode by dt and computes
// prompt tokens for dt on each of the m ranks that have some, so prompts are cheapest
//   - below the time that the slowest rank needs anyway: these tokens are free;
//   - together: m prompts on m ranks share what one would pay alone.
//
// When to pay. N requests decode; prompts of S seconds come at rate lambda; a rank has the share f of its
// time free. A rise of dt that m ranks share costs N dt. It brings prompts forward:
//   - a prompt that would else be computed at speed v (seconds of work per second) ends dt / v earlier. So
//     where m >= N v, with v the free speed f or the pace below, the rise pays at once, whatever is wanted;
//   - with Q prompts on G ranks, Q / G wait for each rank, and free time alone would work them off at the
//     speed f - lambda S / G. So m Q / G >= N (f - lambda S / G) is the least that paying for a backlog
//     takes. Where arrivals take all free time and more, decodes pay in any case.
// Company: k prompts that pay together have waited k / 2 lambda on average, and each pays N S / k; the sum is
// least at k = sqrt(2 lambda N S). While fewer than that share the rise (or than G, if that is less), the
// level stays where prompts are free.
//
// How fast. The free rows of a step that had no prompt are lost, so what has to be paid is spread evenly:
// every prompt under way gets the mean prompt's share of a horizon tau = k / lambda per step, by which k
// prompts are under way, by Little's law. They wait k / lambda each and pay N S / k: least at k = sqrt(lambda
// N S), of which PrefillSettings::pace takes more or less. A long prompt takes longer and does not hold up a
// step in proportion to its length. The steps that a plan takes to arrive come on top of tau, since a prompt
// that is on its way shares nothing yet. Only free rows are worth spreading for: of the share 1 - f G /
// (lambda S) of the work that free time leaves over, tau counts PrefillSettings::least_steps at most.
//
// Who. A prompt leaves the pool for a rank only when that rank has none, the shortest first by age over
// length; the longest of a step goes to the rank that will be least loaded.
//
// Bounds. No rank computes beyond the level, so no decode is later than that, and the level is above the
// slowest rank's time by twice that time or a mean prompt's, if this is more. A prompt that has been bound
// for twice the time that it was meant to take is given its share in every step, whoever shares it; where no
// time is free, already after 0.03 of what a mean prompt costs all decodes if it pays alone, and where free
// time leaves over the share p of the work, after 0.03 / p^3 of that. One in the pool outgrows all that are
// younger, as its age over its length grows without bound.
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
  // Prompts that pay together need to be this share of the best number, since the last ranks to get one are
  // long in coming. In (0, 1].
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
  // Whole steps between what a plan is made from and the step that it is for: 1 in a pipelined router.
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
