// Which waiting prompt goes to which rank, and up to which step time ranks compute prompts: one plan for
// prompts and decodes of a group that meets in a barrier. Minimises the mean number of requests in the
// system, which by Little's law is the mean time from arrival to end. A step that is longer by dt delays all
// N decoding requests by dt, and computes prompt tokens for dt on each of the m ranks that have prompts. So
// prompts are computed below the time that the slowest rank needs anyway, where they are free, and together
// with others, which share the cost. docs/design/prompts.md derives the rules, with objectives for first
// tokens and prefixes.
//
// Bounds. No rank computes beyond the level. The level is above the slowest rank's time by at most twice that
// time, or twice a mean prompt's time if that is more. A prompt that has been bound for twice its intended
// time gets its share in every step. A prompt that has waited at least sqrt(longest / shortest) times as long
// as all others goes first. Pure and deterministic; any thread, no state. Units: tokens, seconds, steps.
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
