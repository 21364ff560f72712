// What one server of a chain has of a model, and what that takes of its memory.
//
// Purpose: says before anything is loaded whether blocks and KV cache fit into a limit, and gives a planner
// of chains its sizes: a block's weights (s_m), the KV of a token in a block, and what a chain's head has
// besides. Weights count as the engine keeps them, converted or mapped. Activations do not count: leave
// memory for them (docs/chains.md has their size). Threads: plain data, pure.
#ifndef BFIO_WORKER_ENGINE_DECODE_MODEL_PART_H_
#define BFIO_WORKER_ENGINE_DECODE_MODEL_PART_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/block_range.h"

namespace bfio::worker {

struct ModelPart {
  BlockRange blocks;
  // Embedding, final norm and lm_head.
  bool ends = true;

  friend bool operator==(const ModelPart&, const ModelPart&) = default;
};

inline ModelPart WholeModel(int64_t layers) {
  return {{0, static_cast<int32_t>(layers)}, true};
}

// Bytes.
struct ModelBytes {
  // Embedding, final norm, lm_head; a tied one once.
  int64_t ends = 0;
  // The largest block's; blocks of one checkpoint hardly differ.
  int64_t block = 0;
  // Keys and values of one token in one block.
  int64_t kv_token = 0;

  int64_t Weights(const ModelPart& part) const { return part.blocks.count * block + (part.ends ? ends : 0); }
};

// RESOURCE_EXHAUSTED, with the sizes and what is missing, when the part and `kv_bytes` do not fit into
// `limit` bytes.
absl::Status CheckFits(const ModelBytes& bytes, const ModelPart& part, int64_t kv_bytes, int64_t limit);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_DECODE_MODEL_PART_H_
