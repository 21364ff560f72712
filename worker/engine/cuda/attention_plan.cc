#include "worker/engine/cuda/attention_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::worker::gpu {
namespace {

// Slots beyond one per chunk, for tiles of several tokens, which need one per token and chunk. A tile that
// does not fit is not divided; its result is the same. For 32 query heads of 128 these slots take 68 MB.
constexpr int64_t kSpareParts = 4096;

int32_t Chunks(int32_t tokens) {
  return (tokens + kChunkTokens - 1) / kChunkTokens;
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

bool Larger(const AttentionItem& a, const AttentionItem& b) {
  const int32_t tokens_a = a.end - a.begin, tokens_b = b.end - b.begin;
  if (tokens_a != tokens_b) return tokens_a > tokens_b;
  if (a.row != b.row) return a.row < b.row;
  return a.begin < b.begin;
}

}  // namespace

absl::Status CheckAttentionShape(const AttentionShape& shape) {
  const int32_t dim = shape.head_dim, page = shape.page_tokens;
  if (dim != 16 && dim != 32 && dim != 64 && dim != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", dim, "; the CUDA engine supports 16, 32, 64 and 128"));
  }
  if (shape.kv_heads < 1 || shape.q_heads < 1 || shape.q_heads % shape.kv_heads != 0 ||
      shape.group() > kShortTileRows) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.q_heads, " query heads and ", shape.kv_heads,
                     " KV heads; the CUDA engine supports 1 to 16 query heads per KV head"));
  }
  if (page != 16 && page != 32 && page != 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("pages of ", page, " tokens; the CUDA engine supports 16, 32 and 64"));
  }
  return absl::OkStatus();
}

AttentionSizes SizesFor(const AttentionShape& shape, const AttentionLimits& limits) {
  // A run's last chunk may be partly empty: sum of ceil(t / c) <= floor(sum of t / c) + runs.
  const int64_t chunks = limits.kv_tokens / kChunkTokens + limits.runs;
  // CutLong adds one piece per tile, and as many as fill the blocks.
  const int64_t long_items =
      limits.rows / shape.long_tile_tokens() + limits.runs + CeilDiv(limits.blocks, shape.kv_heads);
  return {chunks, long_items, limits.rows, chunks + kSpareParts};
}

AttentionPlan::AttentionPlan(const AttentionShape& shape, const AttentionLimits& limits)
    : shape_(shape), limits_(limits), sizes_(SizesFor(shape, limits)) {
  short_items_.reserve(sizes_.short_items);
  long_items_.reserve(sizes_.long_items);
  combines_.reserve(sizes_.combines);
}

void AttentionPlan::Clear() {
  short_items_.clear();
  long_items_.clear();
  combines_.clear();
  parts_ = 0;
  most_parts_ = 0;
}

absl::Status AttentionPlan::Build(const StepPlan& step) {
  Clear();
  int64_t kv_tokens = 0;
  for (int32_t run = 0; run < step.runs(); ++run) {
    kv_tokens += step.positions[step.run_rows[run + 1] - 1] + 1;
  }
  if (step.rows() > limits_.rows || step.runs() > limits_.runs || kv_tokens > limits_.kv_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a step of ", step.rows(), " rows in ", step.runs(), " runs with ", kv_tokens,
        " KV tokens exceeds the limits ", limits_.rows, ", ", limits_.runs, " and ", limits_.kv_tokens));
  }
  // Slots that runs of one token need; the other runs may use the rest.
  int64_t reserved = 0;
  for (int32_t run = 0; run < step.runs(); ++run) {
    const int32_t row = step.run_rows[run];
    if (step.run_rows[run + 1] - row == 1) reserved += Chunks(step.positions[row] + 1);
  }
  for (int32_t run = 0; run < step.runs(); ++run) {
    AttentionItem item;
    item.row = step.run_rows[run];
    item.tokens = step.run_rows[run + 1] - item.row;
    item.position = step.positions[item.row];
    item.first_page = step.run_pages[run];
    item.end = item.position + item.tokens;
    const int64_t needed = static_cast<int64_t>(Chunks(item.end)) * item.tokens;
    if (item.tokens == 1) {
      reserved -= needed;
      AddShort(item);
    } else if (item.tokens <= shape_.short_tile_tokens() && parts_ + reserved + needed <= sizes_.parts) {
      AddShort(item);
    } else {
      AddLong(item);
    }
  }
  CutLong();
  std::sort(short_items_.begin(), short_items_.end(), Larger);
  std::sort(long_items_.begin(), long_items_.end(), Larger);
  return absl::OkStatus();
}

void AttentionPlan::AddShort(const AttentionItem& run) {
  const int32_t chunks = Chunks(run.end);
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    AttentionItem item = run;
    item.begin = chunk * kChunkTokens;
    item.end = std::min(run.end, item.begin + kChunkTokens);
    if (chunks > 1) item.part = static_cast<int32_t>(parts_) + chunk * run.tokens;
    short_items_.push_back(item);
  }
  if (chunks > 1) AddCombines(run);
}

void AttentionPlan::AddCombines(const AttentionItem& tile) {
  for (int32_t i = 0; i < tile.tokens; ++i) {
    // A token attends to no chunk that starts after it.
    const int32_t parts = Chunks(tile.position + i + 1);
    combines_.push_back({tile.row + i, static_cast<int32_t>(parts_) + i, tile.tokens, parts});
    most_parts_ = std::max(most_parts_, parts);
  }
  parts_ += static_cast<int64_t>(Chunks(tile.end)) * tile.tokens;
}

void AttentionPlan::AddLong(const AttentionItem& run) {
  const int32_t tile = shape_.long_tile_tokens();
  for (int32_t first = 0; first < run.tokens; first += tile) {
    AttentionItem item = run;
    item.row = run.row + first;
    item.tokens = std::min(tile, run.tokens - first);
    item.position = run.position + first;
    item.end = item.position + item.tokens;
    long_items_.push_back(item);
  }
}

// Cuts the tiles into pieces with equal numbers of chunks, so that all blocks have work.
void AttentionPlan::CutLong() {
  const size_t tiles = long_items_.size();
  if (static_cast<int64_t>(tiles) * shape_.kv_heads >= limits_.blocks) return;
  int64_t total = 0;
  for (const AttentionItem& tile : long_items_) total += Chunks(tile.end);
  const int32_t piece = static_cast<int32_t>(CeilDiv(total * shape_.kv_heads, limits_.blocks));
  for (size_t i = 0; i < tiles; ++i) {
    const AttentionItem tile = long_items_[i];
    const int32_t chunks = Chunks(tile.end);
    if (chunks <= piece || parts_ + static_cast<int64_t>(chunks) * tile.tokens > sizes_.parts) continue;
    for (int32_t chunk = 0; chunk < chunks; chunk += piece) {
      AttentionItem item = tile;
      item.begin = chunk * kChunkTokens;
      item.end = std::min(tile.end, item.begin + piece * kChunkTokens);
      item.part = static_cast<int32_t>(parts_) + chunk * tile.tokens;
      if (chunk == 0) {
        long_items_[i] = item;
      } else {
        long_items_.push_back(item);
      }
    }
    AddCombines(tile);
  }
}

}  // namespace bfio::worker::gpu
