// One size of chunks for all ranks of a group: what the router did before it planned by time.
//
// Purpose: the baseline of experiments on prompts behind a barrier. Pure. Tokens. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_STEP_EQUAL_CHUNK_H_
#define BFIO_TOOLS_SIM_STEP_EQUAL_CHUNK_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/types/span.h"

namespace bfio::sim {

// A step costs its weights whether it has 1 row or 64: smaller chunks save no time. Not tuned.
inline constexpr int64_t kLeastChunk = 64;

// As much as the mean rank has to compute, so that one with more takes no more time than that, but at least
// kLeastChunk. Nothing where no rank has anything to compute. `pending` by rank.
inline std::optional<int64_t> EqualChunk(absl::Span<const int64_t> pending) {
  const int64_t all = std::accumulate(pending.begin(), pending.end(), int64_t{0});
  if (all == 0) return std::nullopt;
  const auto ranks = static_cast<int64_t>(pending.size());
  return std::clamp<int64_t>((all + ranks - 1) / ranks, kLeastChunk, std::numeric_limits<int32_t>::max());
}

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_STEP_EQUAL_CHUNK_H_
