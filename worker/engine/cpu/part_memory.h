// What a part of a model takes of a server's memory.
//
// Purpose: says before anything is loaded whether blocks and KV cache fit into a limit, and gives a planner
// of pipelines its sizes: a block's weights (s_m), the KV of a token in a block, and what a chain's head has
// besides. Weights count as the engine keeps them, converted or mapped. Activations do not
// count: a few times the rows of a step times the hidden size, and the head's logits; leave room for them.
// Threads: pure.
#ifndef BFIO_WORKER_ENGINE_CPU_PART_MEMORY_H_
#define BFIO_WORKER_ENGINE_CPU_PART_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "worker/engine/cpu/kv_cache.h"
#include "worker/engine/cpu/weights.h"

namespace bfio::worker::cpu {

// Bytes.
struct ModelBytes {
  // Embedding, final norm, lm_head; a tied one once.
  int64_t ends = 0;
  // The largest block's; blocks of one checkpoint hardly differ.
  int64_t block = 0;
  // Keys and values of one token in one block.
  int64_t kv_token = 0;

  int64_t Weights(const ModelPart& part) const {
    return part.blocks.count() * block + (part.ends ? ends : 0);
  }
};

ModelBytes BytesOf(const Model& model, Storage weights, Storage kv);

// The KV cache of `blocks` blocks and one page table.
KvShape PartShape(const ModelConfig& config, int64_t blocks, int32_t page_tokens, int64_t pages, Storage kv);

// RESOURCE_EXHAUSTED, with the sizes and what is missing, when the part and `kv_bytes` do not fit into
// `limit` bytes.
absl::Status CheckFits(const ModelBytes& bytes, const ModelPart& part, int64_t kv_bytes, int64_t limit);

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_PART_MEMORY_H_
