// The tree of connections between ranks, with rank 0 at the root. Pure functions.
//
// With at most `fan_out` + 1 ranks it is a star, the fastest shape for a handful of ranks: two messages deep.
#ifndef BFIO_WORKER_BARRIER_STAR_TOPOLOGY_H_
#define BFIO_WORKER_BARRIER_STAR_TOPOLOGY_H_

#include <algorithm>
#include <cstdint>

namespace bfio::worker {

// REQUIRES: rank >= 1, fan_out >= 1.
constexpr int32_t ParentOf(int32_t rank, int32_t fan_out) {
  return (rank - 1) / fan_out;
}

struct RankRange {
  int32_t begin = 0;
  // Exclusive.
  int32_t end = 0;
  constexpr int32_t size() const { return end - begin; }
};

constexpr RankRange ChildrenOf(int32_t rank, int32_t fan_out, int32_t world_size) {
  const int64_t first = int64_t{rank} * fan_out + 1;
  return {static_cast<int32_t>(std::min<int64_t>(first, world_size)),
          static_cast<int32_t>(std::min<int64_t>(first + fan_out, world_size))};
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_TOPOLOGY_H_
