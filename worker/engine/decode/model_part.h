// The part of a model on one server of a chain, and how much memory it takes. Decides before anything is
// loaded whether blocks and KV cache fit in a limit, and gives the chain planner its sizes: the weights of a
// block (s_m), the KV of one token in one block, and what the head of a chain needs in addition. Weights
// count as the engine stores them, converted or mapped. Activations are not counted: leave memory for them
// (docs/design/chains.md gives their size). Threads: plain data, pure functions.
#pragma once

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

// Sizes in bytes.
struct ModelBytes {
  // Embedding, final norm and lm_head; tied weights count once.
  int64_t ends = 0;
  // The largest block. The blocks of one checkpoint hardly differ.
  int64_t block = 0;
  // Keys and values of one token in one block.
  int64_t kv_token = 0;

  int64_t Weights(const ModelPart& part) const { return part.blocks.count * block + (part.ends ? ends : 0); }
};

// RESOURCE_EXHAUSTED, with the sizes and the missing bytes, when the part and `kv_bytes` do not fit in
// `limit` bytes.
absl::Status CheckFits(const ModelBytes& bytes, const ModelPart& part, int64_t kv_bytes, int64_t limit);

}  // namespace bfio::worker
