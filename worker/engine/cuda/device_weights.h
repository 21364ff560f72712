// A model's weights in device memory. Everything in bf16 (fp32 and fp16 are rounded once), in one allocation.
// q, k and v are one matrix, gate and up another, so that a layer has four products. A server of a chain has
// a part of the weights (model_part.h). Threads: immutable once made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/decode/model_part.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::gpu {

// Matrices are [outputs, inputs]. Null: the model has no such tensor.
struct DeviceLayer {
  // [(heads + 2 * kv_heads) * head_dim, hidden]: q, k, v
  const Bf16* qkv = nullptr;
  const Bf16* qkv_bias = nullptr;
  // [hidden, heads * head_dim]
  const Bf16* o = nullptr;
  const Bf16* o_bias = nullptr;
  // [2 * intermediate, hidden]: gate, up
  const Bf16* gate_up = nullptr;
  const Bf16* gate_up_bias = nullptr;
  // [hidden, intermediate]
  const Bf16* down = nullptr;
  const Bf16* down_bias = nullptr;
  const Bf16* input_norm = nullptr;
  const Bf16* post_attention_norm = nullptr;
  const Bf16* q_norm = nullptr;
  const Bf16* k_norm = nullptr;
};

struct DeviceWeights {
  // Owns the memory; null if it belongs to the backend's own DeviceOps.
  std::shared_ptr<DeviceOps> memory;
  // Embedding, lm_head and final norm are null in a part without ends.
  const Bf16* embedding = nullptr;
  // Equal to `embedding` if the weights are tied.
  const Bf16* lm_head = nullptr;
  const Bf16* final_norm = nullptr;
  // The part's layers, in order.
  std::vector<DeviceLayer> layers;
  // Lower bound of the bytes that a step reads: the layers' matrices and lm_head.
  int64_t step_bytes = 0;
};

// Called with a message during long operations.
using Progress = std::function<void(const std::string&)>;

// Copies the weights to the device through pinned memory. RESOURCE_EXHAUSTED, with sizes, when they do not
// fit.
absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, DeviceOps& ops, const Progress& progress);
// REQUIRES: the model has part.blocks.
absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, const ModelPart& part, DeviceOps& ops,
                                            const Progress& progress);

// Digest of everything that workers must have in common for a request to continue on another worker with the
// same tokens, up to bf16 rounding.
inline ModelDigest CudaDigestOf(const ModelDigest& model) {
  return model.With("cuda, bf16");
}

// Memory that parts of the model take, KV included.
ModelBytes BytesOf(const ModelConfig& config);

// Makes random weights of that shape on the device, for measurements without a checkpoint.
absl::StatusOr<DeviceWeights> MakeRandomWeights(const ModelConfig& config, DeviceOps& ops);

}  // namespace bfio::worker::gpu
