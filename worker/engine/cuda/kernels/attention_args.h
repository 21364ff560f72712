// The arguments of the attention kernels: a step's work, and the device arrays. Plain structs, shared by the
// planner (../attention_plan.h), the launcher (attention.h) and the kernels (attention.cuh). The items are
// the same for all layers of a step. All pointers are device memory. Threads: plain data.
#pragma once

#include <cstdint>

#include "worker/engine/cuda/kernels/device_types.h"
#include "worker/engine/cuda/kv_layout.h"

namespace bfio::worker::gpu {

// Keys and values are summed in chunks of kChunkTokens tokens from a sequence's start, the chunks in order
// within segments of a fixed number of chunks, and then the segments in order. Both sizes are constants,
// because a row's last bit must not depend on how the work was divided (attention.cuh). Segments exist so
// that several warps can merge at the same time: one after the other, the 512 chunks of 128K tokens would
// take longer to merge than to compute.
inline constexpr int32_t kChunkTokens = 256;
inline constexpr int32_t kSegmentChunks = 16;
// Rows of a tile; a row is a query token with one of the query heads that share the KV head. A short tile
// distributes its columns over a block's warps, a long one its rows.
inline constexpr int32_t kShortTileRows = 16;
inline constexpr int32_t kLongTileRows = 64;

// A tile of one sequence's query tokens with a range of its keys and values; processed once for each KV head.
struct alignas(16) AttentionItem {
  // The query tokens are rows row .. row + tokens - 1 of the batch, at consecutive positions from `position`.
  int32_t row = 0;
  int32_t tokens = 0;
  int32_t position = 0;
  // Index of the sequence's first page in AttentionArgs.pages.
  int32_t first_page = 0;
  // Positions [begin, end) of keys and values; begin is a multiple of kChunkTokens.
  int32_t begin = 0;
  int32_t end = 0;
  // Slot for the partial results: that of token i in the item's chunk c goes to slot part + c * tokens + i.
  // Negative: the results are final and go to `out`; the item then covers all keys that its tokens attend to.
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
  // The largest number of parts of any combine.
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

  // [rows][q_stride], query head h at h * head_dim; after RoPE. 16-byte aligned; q_stride is a multiple of 8.
  const Bf16* queries = nullptr;
  int32_t q_stride = 0;
  int32_t q_heads = 0;
  // This layer's pools; they already contain the step's own keys and values.
  const Bf16* keys = nullptr;
  const Bf16* values = nullptr;
  KvLayout kv;
  // 1 / sqrt(head_dim) in most models.
  float scale = 0;

  // [rows][q_heads][head_dim]
  Bf16* out = nullptr;
  // Workspace: [slots][q_heads][head_dim], and [slots][q_heads][2] with the maximum, in units of log 2, and
  // the sum.
  float* part_outputs = nullptr;
  float* part_sums = nullptr;
};

}  // namespace bfio::worker::gpu
