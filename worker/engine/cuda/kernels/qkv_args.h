// Arguments of the kernel between the q/k/v product and attention (qkv.cuh). Conventions: row_args.h.
#pragma once

#include <cstdint>

#include "worker/engine/cuda/kernels/row_args.h"
#include "worker/engine/cuda/kv_layout.h"

namespace bfio::worker::gpu {

// Head dimensions are even and at most this.
inline constexpr int32_t kMaxHeadDim = 128;

struct QkvArgs {
  const StepCounts* counts = nullptr;
  // [rows, (q_heads + 2 * kv_heads) * head_dim] Query heads are updated in place; keys and values are only
  // read.
  Bf16* qkv = nullptr;
  // One row of the above. Null: no bias.
  const Bf16* bias = nullptr;
  // [head_dim] Null: no norm.
  const Bf16* q_norm = nullptr;
  const Bf16* k_norm = nullptr;
  float epsilon = 0;
  int32_t q_heads = 0;
  // [rows, head_dim / 2, 2] Cosine and sine.
  const float* rotations = nullptr;
  // [rows] The token's position in its sequence, and the page for its keys and values.
  const int32_t* positions = nullptr;
  const int32_t* row_pages = nullptr;
  // This layer's pools.
  KvLayout kv;
  Bf16* keys = nullptr;
  Bf16* values = nullptr;
  int32_t grid_rows = 0;
};

}  // namespace bfio::worker::gpu
