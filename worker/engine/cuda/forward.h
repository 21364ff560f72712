// One step of the model on the device: queues a layer's kernels and products, layer after layer. Owns
// activations and KV pools, and defines the order of kernels. A step's inputs are read from device memory
// (step_inputs.h), so the work that Enqueue queues can be recorded once per bucket and replayed. Activations
// are bf16, the residual and all sums fp32, logits fp32. A part of the model's layers begins or ends with the
// residual: hidden rows. Threads: used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/cuda/kernels/attention.h"
#include "worker/engine/cuda/kernels/sample_args.h"
#include "worker/engine/cuda/step_inputs.h"
#include "worker/engine/model/model_config.h"

namespace bfio::worker::gpu {

// The sizes to which a step is padded.
struct StepBucket {
  int32_t rows = 0;
  int32_t draws = 0;
  // Whether there may be long attention items: chunks of prompts.
  bool prompts = false;
};

struct ForwardOptions {
  int32_t max_rows = 0;
  int32_t max_draws = 0;
  int32_t page_tokens = 0;
  int64_t pages = 0;
  AttentionGrid attention_grid;
};

AttentionShape ShapeOf(const ModelConfig& config, int32_t page_tokens);

class Forward {
 public:
  // INVALID_ARGUMENT: a shape that the kernels do not support; RESOURCE_EXHAUSTED: not enough device memory.
  // `ops` and `weights` must outlive this.
  static absl::StatusOr<std::unique_ptr<Forward>> Create(const ModelConfig& config,
                                                         const DeviceWeights& weights,
                                                         const ForwardOptions& options,
                                                         const AttentionSizes& sizes, DeviceOps& ops);

  // Device memory that a Forward allocates, in bytes. REQUIRES: the options are in range.
  static int64_t BytesOf(const ModelConfig& config, const DeviceWeights& weights,
                         const ForwardOptions& options, const AttentionSizes& sizes);

  // Chooses the products of this bucket (DeviceOps::Prepare).
  absl::Status Prepare(const StepBucket& bucket);
  // Queues a step from tokens to drawn tokens. REQUIRES: the weights are the whole model.
  absl::Status Enqueue(const StepBucket& bucket, const StepInputs& inputs);
  // Queues the work from tokens, or from the residual where there is no embedding, to the residual.
  absl::Status EnqueueBlocks(const StepBucket& bucket, const StepInputs& inputs);
  // Queues the work from the residual's first rows, one per draw, to drawn tokens. REQUIRES: the weights have
  // the ends.
  absl::Status EnqueueDraws(const StepBucket& bucket, const StepInputs& inputs);
  // Queues only the attention of all layers, for benchmarks.
  absl::Status EnqueueAttention(const StepBucket& bucket, const StepInputs& inputs);

  // [max_rows, hidden] In device memory.
  float* residual() const { return residual_; }
  // [max_draws] In device memory.
  const DrawResult* results() const { return results_; }
  // [max_draws, kMaxTop] In device memory.
  const TopResult* tops() const { return tops_; }
  // [max_draws, vocab] In device memory.
  const float* logits() const { return logits_; }
  // Bytes of a token's keys and values, over all layers here.
  int64_t kv_token_bytes() const;

 private:
  struct Product {
    // One per layer.
    std::vector<const Bf16*> weights;
    int32_t outputs = 0;
    int32_t inputs = 0;
    bool fp32_out = false;
  };

  Forward(const ModelConfig& config, const DeviceWeights& weights, const ForwardOptions& options,
          DeviceOps& ops);

  // Calls `visit` with each array of device memory, its bytes and its name.
  template <typename Visit>
  static void ForEachArray(const ModelConfig& config, const DeviceWeights& weights,
                           const ForwardOptions& options, const AttentionSizes& sizes, const Visit& visit);
  int64_t pool_elements() const;
  int64_t layers() const { return static_cast<int64_t>(weights_.layers.size()); }
  absl::Status Allocate(const AttentionSizes& sizes);
  absl::Status Prepare(const Product& product, int32_t rows, const Bf16* x, void* y);
  absl::Status Multiply(const Product& product, int64_t layer, int32_t rows, const Bf16* x, void* y);
  // What a sublayer adds to the residual: [rows, hidden], or nothing; and its bias, or none.
  struct Addend {
    const Bf16* rows = nullptr;
    const Bf16* bias = nullptr;
  };

  absl::Status Embed(const StepBucket& bucket, const StepInputs& inputs);
  // Adds `addend` to the residual and normalises it to normed_, unless `weight` is null.
  absl::Status Norm(const StepBucket& bucket, const StepInputs& inputs, const Addend& addend,
                    const Bf16* weight, bool picked);
  absl::Status AppendKv(const StepBucket& bucket, const StepInputs& inputs, int64_t layer);
  absl::Status Attend(const StepBucket& bucket, const StepInputs& inputs, int64_t layer);
  absl::Status Activate(const StepBucket& bucket, const StepInputs& inputs, int64_t layer);
  absl::Status RunLayer(const StepBucket& bucket, const StepInputs& inputs, int64_t layer);
  absl::Status RunLayers(const StepBucket& bucket, const StepInputs& inputs);
  // Draws from the rows in normed_.
  absl::Status Draw(const StepBucket& bucket, const StepInputs& inputs);

  const ModelConfig config_;
  const DeviceWeights& weights_;
  const ForwardOptions options_;
  DeviceOps& ops_;
  Product qkv_, o_, gate_up_, down_, lm_head_;

  // [rows, ...] or [draws, ...]
  float* residual_ = nullptr;
  float* rotations_ = nullptr;
  Bf16* normed_ = nullptr;
  Bf16* projected_ = nullptr;
  Bf16* attended_ = nullptr;
  // What a sublayer adds to the residual.
  Bf16* addend_ = nullptr;
  Bf16* gates_ = nullptr;
  Bf16* activated_ = nullptr;
  float* logits_ = nullptr;
  DrawResult* results_ = nullptr;
  TopResult* tops_ = nullptr;
  // [head_dim / 2]
  float* frequencies_ = nullptr;
  float* part_outputs_ = nullptr;
  float* part_sums_ = nullptr;
  // [layers] pools, one after the other.
  Bf16* keys_ = nullptr;
  Bf16* values_ = nullptr;
};

}  // namespace bfio::worker::gpu
