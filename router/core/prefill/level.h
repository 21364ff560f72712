// How many prompt tokens fit below a step time, and the level up to which all ranks of a group are filled.
// The ranks of a group wait in a barrier for the slowest one, so the time below the slowest rank's is free:
// prompt tokens computed there lengthen no step. Above it, each further second delays all requests that
// decode, and lets every rank with prompts compute some: m ranks that share it compute m times as many
// tokens. So ranks are filled up to a common time, the level, which stops rising when too few ranks share the
// rise. Rows below the knee of a rank's cost take the time of attention only, which is small but not zero, so
// many tokens share a rise there. Units: tokens, seconds. Pure; any thread.
#ifndef BFIO_ROUTER_CORE_PREFILL_LEVEL_H_
#define BFIO_ROUTER_CORE_PREFILL_LEVEL_H_

#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "common/cost/prompt_work.h"

namespace bfio::core {

struct Level {
  double seconds = 0;
  // Prompt tokens that all ranks together compute below the level.
  int64_t tokens = 0;
};

// Number of ranks' worth of tokens that a rise of the level above `level_s` gives on this rank: the prompt
// tokens of the rise, divided by the tokens that it would give above the rank's knee. So it is 0 without
// prompts left, 1 above the knee, and more below it, where tokens only take the time of attention. Attention
// to a prompt's own tokens is not counted, because it costs the same whenever they are computed.
double SharingAt(const RankWork& rank, double level_s);

// The lowest level at which a rank computes prompts of `work_s` within `left_s`, all in seconds; infinite
// where no level is high enough. Of a step up to the level L, L - other_s is for prompts: `other_s` is the
// time of its other rows, less the time that its free rows would take above the knee. So n steps need L =
// other_s + work_s / n; the largest n that ends in time is chosen. No step is shorter than `least_s`. The
// result aims to end half a step early, because tokens are whole numbers and steps vary.
double LevelWithin(double other_s, double least_s, double work_s, double left_s);

// When the level stops rising.
struct LevelTerms {
  // The slowest rank's time without prompts, which is the lowest level.
  double least_s = 0;
  // Until all ranks together compute `wanted_tokens`, and each rank its `own_tokens`, the level rises while
  // at least `least_sharing` ranks share the rise.
  double wanted_tokens = 0;
  double least_sharing = 0;
  // Beyond these tokens it still rises while at least this number of ranks share the rise, because such a
  // rise pays off at once.
  double paying_sharing = std::numeric_limits<double>::infinity();
  // By rank: tokens that the rank itself must compute before the level stops; other ranks' tokens do not
  // replace them. Empty: none.
  absl::Span<const int64_t> own_tokens;
};

// Finds the level by bisection with a relative accuracy of 2^-40: O(40 prompts). REQUIRES: least_s,
// wanted_tokens and least_sharing are finite; own_tokens is empty or has one per rank; costs have a positive
// slope.
Level FillLevel(absl::Span<const RankWork> ranks, const LevelTerms& terms);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_LEVEL_H_
