// Prompts that a rank has to compute beside its decodes, and how many of their tokens fit below a step time.
// The router plans with it (router/core/prefill) and a worker executes the plan with it
// (worker/scheduler/batch_planner.h), so both interpret a level in the same way. Pure. Units: tokens,
// seconds. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"

namespace bfio {

// A prompt that a rank has to compute: its remaining tokens, and those in its cache.
struct PromptLeft {
  int64_t left = 0;
  int64_t done = 0;
};

// The work of one rank in the next step.
struct RankWork {
  // The cost of its batches; its granule is ignored.
  BatchCost cost;
  // Number of decodes, and the tokens that they attend to.
  int64_t decodes = 0;
  double decode_context = 0;
  // In the order in which the rank computes them.
  absl::Span<const PromptLeft> prompts;

  // Time of the step with its decodes and no prompt token; includes the fixed part even without decodes.
  double SecondsWithoutPrompts() const;
  // Rows that cost nothing in addition to the decodes: those below the knee b0.
  int64_t FreeRows() const;
  // Sum of the remaining tokens of all prompts.
  int64_t PromptTokens() const;
};

// Number of steps for which a plan's level is valid (bfio/v1/worker.proto, Plan.level_s).
inline constexpr int64_t kLevelSteps = 16;

// In an engine no decode waits for the budget: every rank generates a token for every decoding request in
// every step, and without a level prompts get at least this many rows however many decodes there are. The
// value is a whole row tile of the CPU and GPU kernels; it is not tuned.
inline constexpr int64_t kMinPrefillRows = 16;

// The largest number of prompt tokens, taken in order, with which the step ends by `level_s`. 0 when it does
// not end by then even without prompts. O(prompts).
int64_t TokensWithin(const RankWork& rank, double level_s);

// Computes up to `tokens` prompt tokens in order, removes the prompts that are then complete after calling
// `completed` for each, and returns the number of tokens computed. `Prompts`: a sequence of structures with
// the fields of PromptLeft.
template <typename Prompts, typename Completed>
int64_t ComputePrompts(int64_t tokens, Prompts& prompts, const Completed& completed) {
  int64_t computed = 0;
  auto prompt = prompts.begin();
  for (; prompt != prompts.end(); ++prompt) {
    const int64_t chunk = std::min(tokens - computed, prompt->left);
    prompt->left -= chunk;
    prompt->done += chunk;
    computed += chunk;
    if (prompt->left > 0) break;
    completed(*prompt);
  }
  prompts.erase(prompts.begin(), prompt);
  return computed;
}

// The time by which an engine's step should end, and the cost of its batches.
struct PrefillLevel {
  double seconds = 0;
  BatchCost cost;
};

// The time that a whole prompt adds to a step with `free_rows` rows left below the knee; and how many of a
// prompt's next tokens add at most `seconds`.
double WholePromptSeconds(const BatchCost& cost, const PromptLeft& prompt, int64_t free_rows);
int64_t PromptPartWithin(const BatchCost& cost, const PromptLeft& prompt, int64_t free_rows, double seconds);

}  // namespace bfio
