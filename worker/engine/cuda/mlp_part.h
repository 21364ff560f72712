// A rank's part of the MLP's intermediate width. Pure.
//
// Purpose: the terms of the summation tree (worker/barrier/summation_tree.h) as column ranges, in whole
// vectors of 16 bytes and as evenly as possible. A narrow MLP may leave a term without columns.
#ifndef BFIO_WORKER_ENGINE_CUDA_MLP_PART_H_
#define BFIO_WORKER_ENGINE_CUDA_MLP_PART_H_

#include <cstdint>
#include <vector>

#include "worker/barrier/summation_tree.h"

namespace bfio::worker::gpu {

// Columns begin .. end - 1.
struct MlpColumns {
  int32_t begin = 0;
  int32_t end = 0;

  int32_t width() const { return end - begin; }
  friend bool operator==(const MlpColumns&, const MlpColumns&) = default;
};

struct MlpPart {
  MlpColumns all;
  // In order; together they are `all`. Each is summed separately. Empty if a rank has no terms.
  std::vector<MlpColumns> nodes;
};

// REQUIRES: intermediate is a multiple of 8.
inline MlpColumns ColumnsOf(TermRange terms, int64_t intermediate) {
  const auto border = [&](int32_t term) {
    return static_cast<int32_t>(8 * (intermediate / 8 * term / kSumTerms));
  };
  return {border(terms.begin), border(terms.end)};
}

// `one_sum`: a single node with all terms, even if they are not a whole subtree. REQUIRES: as ColumnsOf.
inline MlpPart PartOf(int32_t rank, int32_t world_size, int64_t intermediate, bool one_sum) {
  const TermRange terms = TermsOf(rank, world_size);
  MlpPart part;
  part.all = ColumnsOf(terms, intermediate);
  if (one_sum) {
    part.nodes = {part.all};
    return part;
  }
  for (const TermRange& node : NodesOf(terms)) part.nodes.push_back(ColumnsOf(node, intermediate));
  return part;
}

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_MLP_PART_H_
