// Arguments of the kernels that process row by row, and what they have in common. One plain struct per
// kernel, shared by the host that fills it in, the launcher and the kernel. All pointers are device memory;
// an array's shape is noted beside it. A launch covers `grid_rows` rows (or draws), the bucket that a step is
// padded to. The step's actual numbers are in StepCounts, in device memory, so that a captured graph can be
// replayed for any step of its bucket. Threads: plain data.
#pragma once

#include <cstdint>

#include "worker/engine/cuda/kernels/device_types.h"

namespace bfio::worker::gpu {

struct StepCounts {
  int32_t rows = 0;
  int32_t draws = 0;
};

// Sets residual[row] = table[token_ids[row]], unless the residual is given, and the row's rotations for all
// layers.
struct EmbedArgs {
  const StepCounts* counts = nullptr;
  // [rows]
  const uint32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  // [vocab, hidden] Null: the residual comes from another server.
  const Bf16* table = nullptr;
  int32_t hidden = 0;
  // [head_dim / 2] Radians per position.
  const float* frequencies = nullptr;
  int32_t half_dim = 0;
  // [rows, hidden]
  float* residual = nullptr;
  // [rows, head_dim / 2, 2] Cosine and sine.
  float* rotations = nullptr;
  int32_t grid_rows = 0;
};

// Sets residual[row] += addend[row] + bias, and normed[row] = RMSNorm(residual[row]) * weight, rounded to
// bf16 once before and once after the weight, as in transformers. Sums are fp32.
struct NormArgs {
  const StepCounts* counts = nullptr;
  // [draws] Null: every row is normalised. Otherwise normed[i] belongs to row picked[i], and the residual is
  // not changed.
  const int32_t* picked = nullptr;
  // [rows, hidden]
  float* residual = nullptr;
  // [rows, hidden] Null: nothing is added.
  const Bf16* addend = nullptr;
  // [hidden] Null: no bias. Only with an addend.
  const Bf16* bias = nullptr;
  // [hidden]
  const Bf16* weight = nullptr;
  float epsilon = 0;
  int32_t hidden = 0;
  // [rows or draws, hidden] Null: only the residual is computed; requires an addend.
  Bf16* normed = nullptr;
  int32_t grid_rows = 0;
};

// Sets out[row] = silu(gate + gate bias) * (up + up bias), where gate_up[row] is gate, then up.
struct SiluArgs {
  const StepCounts* counts = nullptr;
  // [rows, 2 * width]
  const Bf16* gate_up = nullptr;
  // [2 * width] Null: no bias.
  const Bf16* bias = nullptr;
  int32_t width = 0;
  // [rows, width]
  Bf16* out = nullptr;
  int32_t grid_rows = 0;
};

}  // namespace bfio::worker::gpu
