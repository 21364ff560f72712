// How many prompt tokens fit below a step time, and the level up to which all ranks of a group are filled.
//
// Purpose: ranks of a group wait in a barrier for the slowest, so time below the slowest rank's is free:
// prompt tokens computed there lengthen no rank's step. Above it every further second is paid by all requests
// that decode, and buys prompt tokens on each rank that has some: m ranks that share it get m times as many.
// So work is levelled by time, as water finds its level, and the level stops rising when too few ranks share
// the rise. Rows below the knee of a rank's cost take the time of attention alone, which is not quite none:
// the rise that they need is shared by many tokens.
//
// Units: tokens, seconds. Pure; any thread.
#ifndef BFIO_ROUTER_CORE_PREFILL_LEVEL_H_
#define BFIO_ROUTER_CORE_PREFILL_LEVEL_H_

#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "common/cost/prompt_work.h"

namespace bfio::core {

struct Level {
  double seconds = 0;
  // Prompt tokens that all ranks compute below it.
  int64_t tokens = 0;
};

// How many ranks share a rise of the level above `level_s`: the prompt tokens that the rise buys on a rank,
// over those that it would buy above the rank's knee. So 0 for a rank with nothing left to compute there, 1
// above the knee, more below it, where tokens take the time of attention only. Attention to a prompt's own
// tokens is paid whenever they are computed, so it makes a rank share neither more nor less.
double SharingAt(const RankWork& rank, double level_s);

// Up to where the level rises.
struct LevelTerms {
  // Where the slowest rank is without prompts: the level is not below.
  double least_s = 0;
  // Until ranks compute so many, it rises while `least_sharing` share the rise.
  double wanted_tokens = 0;
  double least_sharing = 0;
  // Whatever is wanted, it rises while so many share: such a rise pays at once.
  double paying_sharing = std::numeric_limits<double>::infinity();
};

// Found by bisection to a 2^-40th of the way up: O(40 prompts).
// REQUIRES: least_s, wanted_tokens and least_sharing are finite; costs have a positive slope.
Level FillLevel(absl::Span<const RankWork> ranks, const LevelTerms& terms);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_LEVEL_H_
