// Divides a step's attention into items for the GPU: once per step, for all layers. Host code only, pure. The
// keys and values of short runs (mostly decodes) are divided into chunks that are computed independently and
// combined: work is divided by KV tokens, not by sequence. Chunk borders are multiples of kChunkTokens from
// the sequence's start, so a row's result depends neither on the batch nor on how its prompt was cut. Longer
// runs are divided into tiles of query tokens, each of which processes all chunks in the same order; when
// there are too few tiles to fill the GPU, they are divided by chunks as well. Items are sorted by size,
// largest first, so that blocks that take them one after the other finish at about the same time.
//
// Costs: O(items); nothing is allocated after the constructor. Threads: used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker::gpu {

struct AttentionShape {
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 16;

  // Number of query heads that share a KV head.
  int32_t group() const { return q_heads / kv_heads; }
  // The most query tokens of a tile.
  int32_t short_tile_tokens() const { return kShortTileRows / group(); }
  int32_t long_tile_tokens() const { return kLongTileRows / group(); }
};

// INVALID_ARGUMENT, naming what the kernels do not support. They support head_dim 16, 32, 64 and 128, up to
// 16 query heads per KV head, and pages of 16, 32 and 64 tokens.
absl::Status CheckAttentionShape(const AttentionShape& shape);

// Upper bounds of what a step contains.
struct AttentionLimits {
  int32_t rows = 0;
  int32_t runs = 0;
  // Tokens with keys and values, of all runs together: the cache's pages * page_tokens (sequences share no
  // pages).
  int64_t kv_tokens = 0;
  // Blocks of the long kernel that run at the same time (AttentionGrid.long_blocks). When a step has fewer
  // long tiles, they are also divided by KV tokens, as far as there is memory for their partial results. 0:
  // never.
  int32_t blocks = 0;
};

// Lengths of the device arrays that suffice for every step within the limits.
struct AttentionSizes {
  int64_t short_items = 0;
  int64_t long_items = 0;
  int64_t combines = 0;
  // Number of slots of AttentionArgs.part_outputs and part_sums.
  int64_t parts = 0;
};
// REQUIRES: CheckAttentionShape(shape) is OK; limits are not negative.
AttentionSizes SizesFor(const AttentionShape& shape, const AttentionLimits& limits);

class AttentionPlan {
 public:
  // REQUIRES: as SizesFor.
  AttentionPlan(const AttentionShape& shape, const AttentionLimits& limits);

  // Replaces the plan by one for `step`. RESOURCE_EXHAUSTED when the step exceeds the limits; the plan is
  // then empty. REQUIRES: the positions of a run are consecutive.
  absl::Status Build(const StepPlan& step);

  AttentionCounts counts() const {
    return {static_cast<int32_t>(short_items_.size()), static_cast<int32_t>(long_items_.size()),
            static_cast<int32_t>(combines_.size()), most_parts_};
  }
  absl::Span<const AttentionItem> short_items() const { return short_items_; }
  absl::Span<const AttentionItem> long_items() const { return long_items_; }
  absl::Span<const AttentionCombine> combines() const { return combines_; }
  int64_t parts() const { return parts_; }

 private:
  void Clear();
  void AddShort(const AttentionItem& run);
  void AddLong(const AttentionItem& run);
  void CutLong();
  void AddCombines(const AttentionItem& tile);

  AttentionShape shape_;
  AttentionLimits limits_;
  AttentionSizes sizes_;
  std::vector<AttentionItem> short_items_;
  std::vector<AttentionItem> long_items_;
  std::vector<AttentionCombine> combines_;
  int64_t parts_ = 0;
  int32_t most_parts_ = 0;
};

}  // namespace bfio::worker::gpu
