// How many prompt tokens fit below a step time, and the level up to which all ranks of a group are filled.
//
// Purpose: ranks of a group wait in a barrier for the slowest, so time below the slowest rank's is free:
// prompt tokens computed there lengthen no rank's step. Above it every further second is paid by all requests
// that decode, and buys prompt tokens on each rank that has some: m ranks that share it get m times as many.
// So work is levelled by time, as water finds its level, and the level stops rising when too few ranks share
// the rise.
//
// Units: tokens, seconds. Pure; any thread.
#ifndef BFIO_ROUTER_CORE_PREFILL_LEVEL_H_
#define BFIO_ROUTER_CORE_PREFILL_LEVEL_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"

namespace bfio::core {

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

struct Level {
  double seconds = 0;
  // Prompt tokens that all ranks compute below it.
  int64_t tokens = 0;
};

// The lowest level, at least `least_s`, at which ranks compute `wanted_tokens`; lower, if fewer than
// `least_sharing` ranks would have prompt tokens left there: then the level at which the last of them that is
// too many has none left. Found by bisection to a 2^-40th of the way up: O(40 prompts).
// REQUIRES: least_s, wanted_tokens and least_sharing are finite; costs have a positive slope.
Level FillLevel(absl::Span<const RankWork> ranks, double least_s, double wanted_tokens, double least_sharing);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_LEVEL_H_
