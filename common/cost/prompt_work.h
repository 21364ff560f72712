// Prompts that a rank has to compute beside its decodes, and how many of their tokens fit below a step time.
//
// Purpose: the router plans with it (router/core/prefill) and a worker carries the plan out with it
// (worker/scheduler/batch_planner.h), so both mean the same by a level. Pure. Tokens, seconds. Any thread.
#ifndef BFIO_COMMON_COST_PROMPT_WORK_H_
#define BFIO_COMMON_COST_PROMPT_WORK_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"

namespace bfio {

// A prompt that a rank has to compute: tokens left and tokens in its cache.
struct PromptLeft {
  int64_t left = 0;
  int64_t done = 0;
};

// One rank in the coming step.
struct RankWork {
  // What its batches cost; granule and overflow are not looked at.
  BatchCost cost;
  // Rows that decode, and the tokens that these attend to.
  int64_t decodes = 0;
  double decode_context = 0;
  // In the order in which it computes them.
  absl::Span<const PromptLeft> prompts;

  // Of the step with its decodes and no prompt token; the fixed part also where nothing decodes.
  double SecondsWithoutPrompts() const;
  // Rows that cost nothing beside the decodes: those below the knee b0.
  int64_t FreeRows() const;
  // Sum over prompts.
  int64_t PromptTokens() const;
};

// The most prompt tokens, taken in order, with which the step ends by `level_s`. 0 when it does not end by
// then even without. O(prompts).
int64_t TokensWithin(const RankWork& rank, double level_s);

// The time by which an engine's step shall end, and what its batches cost.
struct PrefillLevel {
  double seconds = 0;
  BatchCost cost;
};

// What a whole prompt adds to a step in which `free_rows` are left below the knee, and how many of its next
// tokens add `seconds` at most.
double WholePromptSeconds(const BatchCost& cost, const PromptLeft& prompt, int64_t free_rows);
int64_t PromptPartWithin(const BatchCost& cost, const PromptLeft& prompt, int64_t free_rows, double seconds);

}  // namespace bfio

#endif  // BFIO_COMMON_COST_PROMPT_WORK_H_
