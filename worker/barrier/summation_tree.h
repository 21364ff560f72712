// The order in which the ranks' partial sums are added, for any number of ranks. Pure functions.
//
// Purpose: bit-equal sums in groups of any size. A sum is divided into kSumTerms terms, the leaves of a fixed
// binary tree: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). The terms are distributed to the ranks in order, as
// evenly as possible (with more ranks than terms some get none). A rank sums those of its terms that form
// whole subtrees, the nodes, and passes them to Barrier::ReduceScatter, which adds the rest: with 2, 4 or 8
// ranks each rank has one node, with 3 ranks they have 1, 2 and 2, and a single rank has the root.
#ifndef BFIO_WORKER_BARRIER_SUMMATION_TREE_H_
#define BFIO_WORKER_BARRIER_SUMMATION_TREE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::worker {

// A power of two.
inline constexpr int32_t kSumTerms = 8;

// The terms begin .. end - 1.
struct TermRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
  bool operator==(const TermRange&) const = default;
};

inline TermRange TermsOf(int32_t rank, int32_t world_size) {
  return {kSumTerms * rank / world_size, kSumTerms * (rank + 1) / world_size};
}

// The subtrees that `terms` consists of, in order. Each begins at a multiple of its size, a power of two.
inline std::vector<TermRange> NodesOf(TermRange terms) {
  std::vector<TermRange> nodes;
  for (int32_t begin = terms.begin; begin < terms.end;) {
    int32_t size = 1;
    while (begin % (2 * size) == 0 && begin + 2 * size <= terms.end) size *= 2;
    nodes.push_back({begin, begin + size});
    begin += size;
  }
  return nodes;
}

inline int64_t NodeCount(int32_t rank, int32_t world_size) {
  return static_cast<int64_t>(NodesOf(TermsOf(rank, world_size)).size());
}

// out = the tree's sum. `nodes` covers all terms, in order; sums[i] are out.size() numbers, those of node i.
inline void SumTree(absl::Span<const TermRange> nodes, absl::Span<const float* const> sums,
                    absl::Span<float> out) {
  constexpr size_t kBlock = 256;
  // Partial sums that are pending for their right neighbour: at most one of each size.
  float waiting[kSumTerms][kBlock];
  TermRange ranges[kSumTerms];
  for (size_t at = 0; at < out.size(); at += kBlock) {
    const size_t count = std::min(kBlock, out.size() - at);
    size_t depth = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      std::copy_n(sums[i] + at, count, waiting[depth]);
      ranges[depth++] = nodes[i];
      while (depth > 1 && ranges[depth - 2].size() == ranges[depth - 1].size()) {
        const float* const right = waiting[depth - 1];
        float* const left = waiting[depth - 2];
        for (size_t j = 0; j < count; ++j) left[j] += right[j];
        ranges[depth - 2].end = ranges[depth - 1].end;
        --depth;
      }
    }
    std::copy_n(waiting[0], count, out.data() + at);
  }
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_SUMMATION_TREE_H_
