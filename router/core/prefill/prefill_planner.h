// Which waiting prompt goes to which rank, when, and up to which step time ranks compute prompts: one plan
// for prompts and decodes of a group that meets in a barrier. Minimises the mean number of requests in the
// system, which by Little's law is the mean time from arrival to end. A step that is longer by dt delays all
// N decoding requests by dt, on however many ranks prompts are computed. So of all extents to which prompts
// can be computed, including not at all, the plan takes the one with the largest
//
//   sum over prompts of the share computed times the wait so far - N (added step time - c work / ranks)
//
// where only the wait counts in which there was room for the prompt, unless ranks follow a level.
// docs/design/prompts.md derives this, c, the order of prompts, objectives for first tokens, prefixes, and
// bounds of waits and levels. Where the engines follow a level, an extent is a step time. Otherwise
// (PrefillSettings::step_tokens) an engine computes what it holds, and an extent is a set of prompts that are
// released together. Pure, deterministic, no state; any thread. Units: tokens, seconds, steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/group_time.h"
#include "common/cost/prompt_work.h"
#include "router/core/model/request.h"

namespace bfio::core {

struct PrefillSettings {
  // 0: ranks follow the level. Otherwise engines fill their steps independently of the plan, which can only
  // release prompts to them, and this is their budget: tokens of a rank's step, decodes included (vLLM:
  // max_num_batched_tokens).
  int64_t step_tokens = 0;
  // Where slots are short: how long a prompt lets others go first, if a rank without a slot has more of its
  // prefix than all ranks with one.
  double longest_wait_s = 0;
  // Share of a mean output by which a rank's requests are assumed to grow when prompts are placed, at least
  // 0. 0.5 is the mean over their lives; less gives the near future more weight.
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
  // The part of waited_s in which no rank had room for it.
  double crowded_s = 0;

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
  // In the order in which ranks must get them.
  std::vector<Binding> bindings;
  // Ranks compute prompt tokens as long as their own step (their BatchCost) ends by this time. 0: none.
  // Infinite: as many as their budgets allow, because no request decodes or engines do not follow a level.
  double level_s = 0;
};

// The lowest level at which a rank computes prompts of `work_s` within `left_s`, all in seconds; infinite if
// none is high enough. `other_s`: the time of a step's other rows, less that of its free rows above the knee.
// So n steps need the level other_s + work_s / n; the largest n that ends in time, half a step early, since
// steps vary, is chosen. No step is shorter than `least_s`.
double LevelWithin(double other_s, double least_s, double work_s, double left_s);

// Where slots are short, the first of `waiting` go first. O(waiting log waiting + kExtents (ranks + bound
// prompts)), and O(ranks) more for each prompt with `cached`. `terms`: what a step costs all ranks beside
// their batches.
PrefillDecision PlanPrefill(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                            const PrefillTraffic& traffic, const GroupTerms& terms,
                            const PrefillSettings& settings);

}  // namespace bfio::core
