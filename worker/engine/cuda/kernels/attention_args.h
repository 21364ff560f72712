// What the host hands to the attention kernels: the work of a step, and where everything is.
//
// Purpose: plain structs, shared by the planner (../attention_plan.h), the launcher (attention.h) and the
// kernels (attention.cuh). The items are the same for all layers of a step. All pointers are device memory.
// Plain data.
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_ARGS_H_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_ARGS_H_

#include <cstdint>

#include "worker/engine/cuda/kernels/device_types.h"
#include "worker/engine/cuda/kv_layout.h"

namespace bfio::worker::gpu {

// Keys and values are summed up in chunks of so many tokens from a sequence's start, chunks in order in
// segments of so many from there, and the segments in order: constants, because a row's last bit must not
// depend on how the work was cut (attention.cuh). Segments are what several warps can merge at a time: one
// after the other, the 512 chunks of 128K tokens would take longer than their attention.
inline constexpr int32_t kChunkTokens = 256;
inline constexpr int32_t kSegmentChunks = 16;
// Rows of a tile, a row being a query token with one of the query heads that share the KV head. A short tile
// spreads its columns over a block's warps, a long one its rows.
inline constexpr int32_t kShortTileRows = 16;
inline constexpr int32_t kLongTileRows = 64;

// A tile of one sequence's query tokens, against a range of its keys and values; to be done for each KV head.
struct alignas(16) AttentionItem {
  // The query tokens are rows row .. row + tokens - 1 of the batch, at positions position and on.
  int32_t row = 0;
  int32_t tokens = 0;
  int32_t position = 0;
  // Of the sequence's first page in AttentionArgs.pages.
  int32_t first_page = 0;
  // Positions [begin, end) of keys and values; begin is a multiple of kChunkTokens.
  int32_t begin = 0;
  int32_t end = 0;
  // Where the partial results go: that of token i in the item's chunk c to slot part + c * tokens + i.
  // Negative: the results are final, and go to `out`; then the item has all that its tokens see.
  int32_t part = -1;
  int32_t unused = 0;
};

// A row whose result is in several parts: slots part, part + stride, ...
struct alignas(16) AttentionCombine {
  int32_t row = 0;
  int32_t part = 0;
  int32_t stride = 0;
  int32_t parts = 0;
};

struct AttentionCounts {
  int32_t short_items = 0;
  int32_t long_items = 0;
  int32_t combines = 0;
  // Of any combine.
  int32_t most_parts = 0;
};

struct AttentionArgs {
  const AttentionCounts* counts = nullptr;
  // [counts.short_items] Tiles of at most kShortTileRows rows, and at most one chunk each.
  const AttentionItem* short_items = nullptr;
  // [counts.long_items] Tiles of at most kLongTileRows rows, and any number of chunks.
  const AttentionItem* long_items = nullptr;
  // [counts.combines]
  const AttentionCombine* combines = nullptr;
  // StepPlan.pages.
  const int32_t* pages = nullptr;

  // [rows][q_stride], query head h at h * head_dim; after RoPE. 16-byte aligned, q_stride a multiple of 8.
  const Bf16* queries = nullptr;
  int32_t q_stride = 0;
  int32_t q_heads = 0;
  // This layer's pools; the step's own keys and values are in them already.
  const Bf16* keys = nullptr;
  const Bf16* values = nullptr;
  KvLayout kv;
  // 1 / sqrt(head_dim) in most models.
  float scale = 0;

  // [rows][q_heads][head_dim]
  Bf16* out = nullptr;
  // Workspace. [slots][q_heads][head_dim]; and [slots][q_heads][2]: the maximum, in units of log 2, and the
  // sum.
  float* part_outputs = nullptr;
  float* part_sums = nullptr;
};

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_ARGS_H_
