// Memory that a part of a model takes in the CPU engine (model_part.h), with weights as the engine stores
// them, converted or mapped. Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_CPU_PART_MEMORY_H_
#define BFIO_WORKER_ENGINE_CPU_PART_MEMORY_H_

#include <cstdint>

#include "worker/engine/cpu/kv_cache.h"
#include "worker/engine/cpu/weights.h"
#include "worker/engine/decode/model_part.h"

namespace bfio::worker::cpu {

ModelBytes BytesOf(const Model& model, Storage weights);

// Shape of a KV cache for `blocks` blocks and one page table.
KvShape PartShape(const ModelConfig& config, int64_t blocks, int32_t page_tokens, int64_t pages);

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_PART_MEMORY_H_
