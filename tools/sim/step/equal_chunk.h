// The same chunk size for all ranks of a group.
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

// Smaller chunks save no time, because a step reads the same weights for 1 row as for 64. Not tuned.
inline constexpr int64_t kLeastChunk = 64;

// The mean number of pending prompt tokens per rank, but at least kLeastChunk, so that a rank with more takes
// no longer than the mean rank. Empty where no rank has prompt tokens. `pending` is by rank.
inline std::optional<int64_t> EqualChunk(absl::Span<const int64_t> pending) {
  const int64_t all = std::accumulate(pending.begin(), pending.end(), int64_t{0});
  if (all == 0) return std::nullopt;
  const auto ranks = static_cast<int64_t>(pending.size());
  return std::clamp<int64_t>((all + ranks - 1) / ranks, kLeastChunk, std::numeric_limits<int32_t>::max());
}

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_STEP_EQUAL_CHUNK_H_
