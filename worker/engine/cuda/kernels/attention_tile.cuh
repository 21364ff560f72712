// Tiles of queries, keys and values in shared memory: their layout, and which thread copies what. A tile is
// [rows][head_dim] bf16 in 16-byte pieces. ldmatrix reads the same piece of 8 rows at a time. Pieces are
// permuted (swizzled) within 128 bytes so that these 8 are in different banks for every head_dim, and so are
// the writes of an async copy.
#pragma once

#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/engine/cuda/kernels/attention_math.cuh"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarpLanes;
// Tiles of keys and values in shared memory (stages): one is computed while the others are being copied.
// Three where the device has enough shared memory; the kernels of kAttentionHeadDimOfTwo also support two.
inline constexpr int kAttentionStages = 3;
inline constexpr int kAttentionHeadDimOfTwo = 128;

// Byte offset of a row's 16-byte piece.
template <int kHeadDim>
BFIO_DEVICE int TileOffset(int row, int piece) {
  constexpr int kPieces = kHeadDim / 8;
  if (kPieces >= 8) return (row * kPieces + (piece ^ (row & 7))) * 16;
  const int line = row * kPieces / 8;
  return (row * kPieces + (piece ^ (line & (kPieces - 1)))) * 16;
}

// Shared memory of a block.
template <int kHeadDim, bool kLong, int kStages = kAttentionStages>
struct AttentionShared {
  static constexpr int kRows = kLong ? kLongTileRows : kShortTileRows;
  static constexpr int kTileBytes = kTileTokens * kHeadDim * 2;
  static constexpr int kStageBytes = 2 * kTileBytes;  // keys, then values
  static constexpr int kQueryBytes = kRows * kHeadDim * 2;
  // A short tile's queries are copied together with its first keys while the previous item is computed.
  static constexpr int kQueryTiles = kLong ? 1 : kStages;
  // Scores of a short tile, exchanged between its warps: 16 rows of 64, padded against bank conflicts.
  static constexpr int kScoreStride = kTileTokens + 8;
  static constexpr int kScoreBytes = kLong ? 0 : kShortTileRows * kScoreStride * 4;
  static constexpr int kQueryOffset = kStages * kStageBytes;
  static constexpr int kScoreOffset = kQueryOffset + kQueryTiles * kQueryBytes;
  static constexpr int kBytes = kScoreOffset + kScoreBytes;

  unsigned char* base;

  BFIO_DEVICE unsigned char* Keys(int stage) const { return base + stage * kStageBytes; }
  BFIO_DEVICE unsigned char* Values(int stage) const { return Keys(stage) + kTileBytes; }
  BFIO_DEVICE unsigned char* Queries(int stage) const {
    return base + kQueryOffset + (kLong ? 0 : stage * kQueryBytes);
  }
  BFIO_DEVICE float* Scores() const { return reinterpret_cast<float*>(base + kScoreOffset); }
};

// An item for one KV head.
struct HeadItem {
  AttentionItem item;
  int kv_head;

  // REQUIRES: work < items * kv_heads.
  BFIO_DEVICE static HeadItem Load(const AttentionItem* items, int work, int kv_heads) {
    const AttentionItem* from = items + work / kv_heads;
    const Words4 a = Load16(from);
    const Words4 b = Load16(reinterpret_cast<const unsigned char*>(from) + 16);
    HeadItem result;
    result.item.row = static_cast<int32_t>(a.x);
    result.item.tokens = static_cast<int32_t>(a.y);
    result.item.position = static_cast<int32_t>(a.z);
    result.item.first_page = static_cast<int32_t>(a.w);
    result.item.begin = static_cast<int32_t>(b.x);
    result.item.end = static_cast<int32_t>(b.y);
    result.item.part = static_cast<int32_t>(b.z);
    result.kv_head = work % kv_heads;
    return result;
  }
};

// Copies the tiles of one item after the other into the stages.
template <int kHeadDim, bool kLong, int kStages>
class TileLoader {
  using Shared = AttentionShared<kHeadDim, kLong, kStages>;
  static constexpr int kPieces = kHeadDim / 8;
  // Rows that the threads copy in one pass, each thread one piece of a row.
  static constexpr int kPassRows = kAttentionThreads / kPieces;
  static constexpr int kPasses = kTileTokens / kPassRows;
  // 16 consecutive tokens are in one page. Pages that a thread needs for a tile, and passes per page.
  static constexpr int kPages = kPasses < 4 ? kPasses : 4;
  static constexpr int kPassesPerPage = kPasses / kPages;

 public:
  BFIO_DEVICE TileLoader(const AttentionArgs& args, const AttentionItem* items, Shared shared)
      : args_(args),
        items_(items),
        shared_(shared),
        page_shift_(4 + (args.kv.page_tokens > 16) + (args.kv.page_tokens > 32)) {}

  // Starts an item. REQUIRES: work < works.
  BFIO_DEVICE void Open(int work) {
    work_ = work;
    head_ = HeadItem::Load(items_, work, args_.kv.kv_heads);
    token_ = head_.item.begin;
    if (!kLong) LoadPages();
  }

  // The item that the next tile belongs to.
  BFIO_DEVICE const HeadItem& head() const { return head_; }

  // Ends the stream of tiles; Copy does nothing from now on.
  BFIO_DEVICE void Close() { token_ = head_.item.end = 0; }

  // Starts copying the next tile into `stage`; with an item's first tile, its queries too.
  BFIO_DEVICE void Copy(int stage) {
    if (token_ >= head_.item.end) return;
    if (token_ == head_.item.begin) CopyQueries(stage);
    // A short tile has its page numbers already, because it is bound by memory latency; in a long one they
    // would take registers.
    if (kLong) LoadPages();
    const int piece = ThreadIndex() % kPieces;
    const int page_mask = args_.kv.page_tokens - 1;
    BFIO_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kPassRows + ThreadIndex() / kPieces;
      const int token = token_ + row;
      const int64_t from =
          args_.kv.TokenOffset(pages_[pass / kPassesPerPage], head_.kv_head, token & page_mask) + piece * 8;
      const int to = TileOffset<kHeadDim>(row, piece);
      const bool valid = token < head_.item.end;
      CopyAsync16(shared_.Keys(stage) + to, args_.keys + from, valid);
      CopyAsync16(shared_.Values(stage) + to, args_.values + from, valid);
    }
  }

  // Advances to the next tile; after an item's last tile, to the item `stride` work items later, or to the
  // end.
  BFIO_DEVICE void Advance(int works, int stride) {
    if (token_ >= head_.item.end) return;
    token_ += kTileTokens;
    if (token_ < head_.item.end) {
      if (!kLong) LoadPages();
    } else if (work_ + stride < works) {
      Open(work_ + stride);
    } else {
      Close();
    }
  }

 private:
  BFIO_DEVICE void LoadPages() {
    BFIO_UNROLL
    for (int i = 0; i < kPages; ++i) {
      const int token = token_ + i * kPassesPerPage * kPassRows + ThreadIndex() / kPieces;
      // Page 0 stands for no page: nothing is read from it.
      pages_[i] = token < head_.item.end ? args_.pages[head_.item.first_page + (token >> page_shift_)] : 0;
    }
  }

  BFIO_DEVICE void CopyQueries(int stage) {
    const int group = args_.q_heads / args_.kv.kv_heads;
    const int piece = ThreadIndex() % kPieces;
    for (int row = ThreadIndex() / kPieces; row < Shared::kRows; row += kPassRows) {
      const int token = row / group;
      const int q_head = head_.kv_head * group + row % group;
      const int64_t from = static_cast<int64_t>(head_.item.row + token) * args_.q_stride + q_head * kHeadDim;
      CopyAsync16(shared_.Queries(stage) + TileOffset<kHeadDim>(row, piece), args_.queries + from + piece * 8,
                  token < head_.item.tokens);
    }
  }

  const AttentionArgs& args_;
  const AttentionItem* items_;
  Shared shared_;
  int page_shift_;
  HeadItem head_ = {};
  int work_ = 0;
  int token_ = 0;
  int32_t pages_[kPages] = {};
};

}  // namespace bfio::worker::gpu
