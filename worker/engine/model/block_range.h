// Consecutive blocks (layers) of a model: [begin, end), counted from 0.
//
// Purpose: what a server of a pipeline hosts, and what a chain has it compute. Threads: plain data.
#ifndef BFIO_WORKER_ENGINE_MODEL_BLOCK_RANGE_H_
#define BFIO_WORKER_ENGINE_MODEL_BLOCK_RANGE_H_

#include <cstdint>

namespace bfio::worker {

struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
  bool Contains(const BlockRange& other) const { return begin <= other.begin && other.end <= end; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// What one server of a pipeline has of a model.
struct ModelPart {
  BlockRange blocks;
  // Embedding, final norm and lm_head.
  bool ends = true;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_BLOCK_RANGE_H_
