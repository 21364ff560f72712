// Which waiting prompt goes to which rank, and up to which step time ranks compute prompts: one plan for
// prompts and decodes of a group that meets in a barrier.
//
// Purpose: minimises the mean number of requests in the system, which by Little's law is the mean time from
// arrival to end. A step that is longer by dt delays all N decoding requests by dt, and computes prompt
// tokens for dt on each of the m ranks that have prompts. So prompts are cheapest
//   - below the time that the slowest rank needs anyway, where they are free;
//   - together: m prompts on m ranks share the cost that one would have alone.
//
// When to lengthen a step. N requests decode; prompts of S seconds arrive at rate lambda; a share f of a
// rank's time is free. (Free is what ranks compute at the lowest level: rows below the knee of a rank's cost
// (level.h) are free only where there is time for their attention, so a rank that is nearly the slowest
// computes little of a long prompt.) A rise of dt costs N dt. It computes prompts earlier:
//   - A prompt that is otherwise computed at speed v (seconds of work per second) ends dt / v earlier. So
//     where m >= N v, with v the free speed f or the pace below, the rise always pays.
//   - With Q prompts on G ranks, Q / G wait for each rank, and free time alone works them off at the speed
//     f - lambda S / G. So a rise for a backlog requires m Q / G >= N (f - lambda S / G). When arrivals need
//     all of the free time or more, steps are lengthened in any case.
// Batching: k prompts that are computed together have waited k / (2 lambda) on average, and each costs N S /
// k. The sum is least at k = sqrt(2 lambda N S). While fewer than k ranks (or than G, if that is less) share
// the rise, the level stays where prompts are free.
//
// How fast. The free rows of a step that had no prompt are lost, and ranks that compute a prompt in one step
// rarely all have one in the next. So the delay is spread evenly: in every step each prompt in progress gets
// the mean prompt's share of a horizon tau = k / lambda, by which k prompts are in progress, by Little's law.
// They wait k / lambda each and cost N S / k: the sum is least at k = sqrt(lambda N S), which
// PrefillSettings::pace scales. A long prompt takes longer; it does not lengthen a step in proportion to its
// length unless that is cheap. A rank whose first prompt needs more than the share to end within tau should
// compute more of it, as far as its rows below the knee go, times the part of a row's time above the knee
// that is saved there, 1 - k1 d / a after d tokens. Tokens of other ranks' prompts do not replace these, and
// the number of ranks that share a rise bounds their cost as it does any other. Where k is below 1 no other
// prompt comes in time, and waiting is worth no more than it saves: tau is at most N S times the pace. tau is
// at least a step. The steps that a plan takes to arrive are added.
//
// Objectives. The horizon serves the mean. A prompt with an objective for its first token may have less time.
// Then the level rises until that prompt and the work before it are done in time (LevelWithin): on its rank;
// or, while it waits, the bound and waiting work before it shared by all ranks, and its own on one. The order
// of prompts does not change. For an objective a step is at most half as long again as without prompts; an
// objective that needs more is not pursued.
//
// Which prompt. A rank gets a prompt from the pool only when it has fewer prompt tokens left than it can
// compute in the step. The prompt with the largest age divided by the square root of its length goes first;
// where slots are short, the oldest. Age over length would serve the mean wait, age alone the longest wait;
// this is the geometric mean of both. The longest prompt of a step goes to the rank that will be least
// loaded.
//
// Prefixes. A rank computes only the part of a prompt that its cache does not hold (WaitingPrompt::cached).
// The least such part counts for the prompt's urgency. The prompt goes to the rank where it costs the group
// least (prompt_placement.h). If a rank with a free slot that has prompts left to compute holds more of it,
// the prompt waits for that rank, but no longer than computing the difference would take (the ski rental
// rule).
//
// Bounds. No rank computes beyond the level, so no decode is later than that. The level is above the slowest
// rank's time by at most twice that time, or twice a mean prompt's time if that is more. A prompt that has
// been bound for twice its intended time (tau steps for a mean one) gets its share in every step, however few
// ranks share it. In the pool a younger prompt goes before an older one only if it is shorter, and has waited
// more than sqrt(its length / the older one's) times as long. So where the longest is r times the shortest, a
// prompt that has waited at least sqrt(r) times as long as all others goes first. In steps, whatever the
// other ranks do and whatever arrives:
//   - A rank's last prompt is computed within tau (2 m + w) + 2 n steps: n prompts on the rank, w of their
//     work left and m of the longest, in mean prompts and at least 1. tau is at most max(1, min(G / lambda, N
//     S times the pace) / step time) + lag.
//   - While prompts wait and a rank has a free slot, a prompt leaves the pool within the same number of
//     steps, taken for the rank with most prompts, plus the steps of a mean request: it may wait that long
//     for a slot on a faster rank. A prompt that waits for a rank with more of its prefix adds that wait.
//
// Pure and deterministic; any thread, no state. Units: tokens, seconds, steps.
#ifndef BFIO_ROUTER_CORE_PREFILL_PREFILL_PLANNER_H_
#define BFIO_ROUTER_CORE_PREFILL_PREFILL_PLANNER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"
#include "router/core/model/request.h"
#include "router/core/prefill/level.h"

namespace bfio::core {

struct PrefillSettings {
  // Weight of prompts' waits against decodes' delays in k. 1 minimises the mean time from arrival to end;
  // with a smaller value, first tokens come sooner and steps vary more. Positive.
  double pace = 0.5;
  // Limit of the prompts in progress, per rank: with one each, all ranks share a longer step, and further
  // prompts only wait. Positive.
  double prompts_per_rank = 1;
  // Minimum number of steps over which the mean prompt is spread, besides those that a plan takes to arrive:
  // no prompt takes less than one. Positive.
  double least_steps = 1;
  // The share of the best number of prompts that suffices to compute them together, since it takes long until
  // the last ranks get one. In (0, 1].
  double sharing = 0.9;
  // Share of a mean output by which the requests of a rank are assumed to grow when prompts are placed. 0.5
  // is the mean over a request's life; less gives the near future more weight. At least 0.
  double growth = 0.3;
};

// Recent measurements of the traffic.
struct PrefillTraffic {
  // Positive where requests wait.
  double arrivals_per_s = 0;
  double mean_prompt_tokens = 0;
  // Time to compute a mean prompt beside decodes: a s + k1 s^2 / 2.
  double mean_prefill_s = 0;
  double mean_output_tokens = 0;
  // Mean duration of a step.
  double step_s = 0;
  // Whole steps between the step from which a plan is made and the step for which it is made: 1 in a
  // pipelined router.
  int32_t lag_steps = 0;
};

inline constexpr double kNoObjective = std::numeric_limits<double>::infinity();
// The rest of an objective after that many steps.
inline double DueIn(const std::optional<double>& objective_s, int64_t steps, double step_s) {
  return objective_s ? *objective_s - static_cast<double>(steps) * step_s : kNoObjective;
}

struct PrefillRank {
  BatchCost cost;
  int64_t decodes = 0;
  double decode_context = 0;
  // Number of requests that the rank can still take.
  int64_t free_slots = 0;
  // Its prompts, in the order in which it computes them.
  std::vector<PromptLeft> prompts;
  // By prompt: seconds left for its first token when the step begins; kNoObjective if the prompt has no
  // objective. Empty if none has one.
  std::vector<double> due_s;
  // Seconds since the first of these prompts was placed here.
  double first_bound_for_s = 0;

  // Adds a prompt.
  void Add(const PromptLeft& prompt, double due) {
    due_s.resize(prompts.size(), kNoObjective);
    prompts.push_back(prompt);
    due_s.push_back(due);
  }
};

struct WaitingPrompt {
  // Prompt tokens to compute.
  int64_t tokens = 0;
  double waited_s = 0;
  // As in PrefillRank.
  double due_s = kNoObjective;
  // Prompt tokens before these whose KV comes computed.
  int64_t done = 0;
  // By rank: how many of `tokens` its prefix cache is expected to hold; fewer than `tokens`. Empty: no cache
  // holds any.
  absl::Span<const int64_t> cached;

  // The prompt if so many of `tokens` are found in a cache.
  PromptLeft Without(int64_t found) const { return {tokens - found, done + found}; }
  // The part of the prompt that this rank would compute.
  PromptLeft On(WorkerIndex rank) const {
    return Without(cached.empty() ? 0 : cached[static_cast<size_t>(rank)]);
  }
  // The part that the rank with most of it would compute.
  PromptLeft Least() const {
    return Without(cached.empty() ? 0 : *std::max_element(cached.begin(), cached.end()));
  }
};

struct PrefillDecision {
  struct Binding {
    // Index into `waiting`.
    int32_t waiting = 0;
    WorkerIndex rank = 0;
  };
  std::vector<Binding> bindings;
  // Ranks compute prompt tokens as long as their step ends by this time; infinite when no request decodes,
  // since then none is delayed.
  double level_s = 0;
};

// REQUIRES: `waiting` is in pool order. O(40 (ranks + bound prompts) + waiting log waiting).
PrefillDecision PlanPrefill(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                            const PrefillTraffic& traffic, const PrefillSettings& settings);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_PREFILL_PLANNER_H_
