// Attention over a paged cache: decodes and chunks of prompts, with query heads grouped by KV head. One
// algorithm, two tile shapes. A row is a query token with one of the `group` query heads that share a KV
// head, so keys and values are read once per group. For 64 keys at a time: scores by mma.sync, online softmax
// (attention_math.cuh), weights rounded to bf16, weighted values summed by mma.sync in fp32. Every
// kChunkTokens tokens the sums are completed and merged, chunk after chunk.
//
// - A long tile is 64 rows of a prompt. Warp w has rows 16w .. 16w + 15, goes through the chunks and merges
//   them, or stores them as parts.
// - A short tile is 16 rows, mostly of a decode, and one chunk. Warp w computes the scores of keys 16w .. 16w
//   + 15, then all warps read all scores, and warp w sums its quarter of the columns.
//
// CombineKernel merges parts as a long tile merges chunks: in order within a segment, then across segments.
// In both tile shapes every number of a row is the result of the same operations in the same order: the mma
// instructions go through the same k, the softmax is the same code, the chunks are the same and are merged in
// the same order. So a token's result is the same, to the last bit, alone or in a batch, in one step or in
// several, provided that an element of mma.sync does not depend on the others in its tile.
//
// Blocks are persistent: block b takes work items b, b + blocks, ..., where a work item is an attention item
// for one KV head. Blocks read the number of items from device memory, so that one grid, and one captured
// graph, serves every step. docs/design/attention.md has the sizes of the pipeline.
#pragma once

#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/engine/cuda/kernels/attention_math.cuh"
#include "worker/engine/cuda/kernels/attention_result.cuh"
#include "worker/engine/cuda/kernels/attention_tile.cuh"
#include "worker/engine/cuda/kernels/attention_warp.cuh"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

// args.scale is in units of log 2 (attention_launch.cuh converts it).
template <int kHeadDim, int kStages>
BFIO_KERNEL(kAttentionThreads, 2)
ShortAttentionKernel(AttentionArgs args) {
  using Shared = AttentionShared<kHeadDim, false, kStages>;
  BFIO_DYNAMIC_SHARED(memory);
  const Shared shared = {memory};
  const int works = args.counts->short_items * args.kv.kv_heads;
  const int group = args.q_heads / args.kv.kv_heads;
  if (BlockIndex() >= works) return;

  TileLoader<kHeadDim, false, kStages> loader(args, args.short_items, shared);
  loader.Open(BlockIndex());
  int stage = 0;
  BFIO_UNROLL
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    loader.Copy(ahead);
    CommitAsync();
    loader.Advance(works, GridBlocks());
  }
  AttentionWarp<kHeadDim, false> warp;
  for (int work = BlockIndex(); work < works; work += GridBlocks()) {
    const HeadItem head = HeadItem::Load(args.short_items, work, args.kv.kv_heads);
    const OwnRows rows(head, group, 0);
    warp.Clear();
    for (int token = head.item.begin; token < head.item.end; token += kTileTokens) {
      WaitAsync<kStages - 2>();
      // The tile has arrived for all threads, and none still uses the tile whose stage is overwritten now.
      SyncBlock();
      loader.Copy(stage == 0 ? kStages - 1 : stage - 1);
      CommitAsync();
      loader.Advance(works, GridBlocks());
      if (token == head.item.begin) warp.KeepQueries(shared.Queries(stage));
      float own[2][4], score[8][4], alpha[2];
      uint32_t weight[4][4];
      warp.template Scores<2>(nullptr, shared.Keys(stage), WarpIndex() * 16, own);
      ExchangeScores(shared.Scores(), Shared::kScoreStride, own, score);
      HideFuture(rows.position, token, score);
      OnlineSoftmax(score, args.scale, warp.state, weight, alpha);
      warp.AddValues(weight, alpha, shared.Values(stage));
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    if (head.item.part < 0) {
      StoreOnlyChunk(args, head, rows, warp);
    } else {
      StoreParts(args, rows, head.item.tokens, head.item.part, warp);
    }
  }
}

inline constexpr int kSegmentTokens = kSegmentChunks * kChunkTokens;

// A long item, whose chunks are merged here or stored as parts. A template parameter selects which, so that
// the accumulators of the merge, 64 registers per thread, exist only where they are needed.
template <int kHeadDim, int kStages, bool kInParts>
BFIO_DEVICE void RunLongItem(const AttentionArgs& args, AttentionShared<kHeadDim, true, kStages> shared,
                             TileLoader<kHeadDim, true, kStages>& loader, int work) {
  using Warp = AttentionWarp<kHeadDim, true>;
  const int group = args.q_heads / args.kv.kv_heads;
  // All threads have finished the previous item. (Its last copies were waited for, so none is pending.)
  SyncBlock();
  loader.Open(work);
  const int begin = loader.head().item.begin, end = loader.head().item.end;
  int position[2];
  OwnRows(loader.head(), group, Warp::FirstRow()).Positions(position);
  BFIO_UNROLL
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    loader.Copy(ahead);
    CommitAsync();
    loader.Advance(0, 1);
  }
  int stage = 0;
  Warp warp;
  warp.Clear();
  constexpr int kMergedTiles = kInParts ? 1 : kHeadDim / 8;
  MergedTile<kMergedTiles> merged;
  merged.Clear();
  MergedSegments<kMergedTiles> segments;
  for (int token = begin; token < end; token += kTileTokens) {
    WaitAsync<kStages - 2>();
    SyncBlock();
    loader.Copy(stage == 0 ? kStages - 1 : stage - 1);
    CommitAsync();
    loader.Advance(0, 1);
    float score[8][4], alpha[2];
    uint32_t weight[4][4];
    warp.template Scores<8>(shared.Queries(0), shared.Keys(stage), 0, score);
    HideFuture(position, token, score);
    OnlineSoftmax(score, args.scale, warp.state, weight, alpha);
    warp.AddValues(weight, alpha, shared.Values(stage));
    stage = stage == kStages - 1 ? 0 : stage + 1;
    const int next = token + kTileTokens;
    if (next % kChunkTokens != 0 && next < end) continue;
    if constexpr (kInParts) {
      // Loaded again here and below rather than kept, to save registers, which limit this kernel.
      const HeadItem head = HeadItem::Load(args.long_items, work, args.kv.kv_heads);
      const int chunk = (token - head.item.begin) / kChunkTokens;
      StoreParts(args, OwnRows(head, group, Warp::FirstRow()), head.item.tokens,
                 head.item.part + chunk * head.item.tokens, warp);
    } else {
      merged.Add(warp, args.scale);
      if (next % kSegmentTokens == 0 && next < end) merged.MoveTo(segments, next == kSegmentTokens);
    }
    warp.Clear();
  }
  if constexpr (!kInParts) {
    if (end > kSegmentTokens) {
      merged.MoveTo(segments, false);
      merged.TakeFrom(segments);
    }
    const HeadItem head = HeadItem::Load(args.long_items, work, args.kv.kv_heads);
    merged.Store(args, head, OwnRows(head, group, Warp::FirstRow()));
  }
}

template <int kHeadDim, int kStages>
BFIO_KERNEL(kAttentionThreads, 2)
LongAttentionKernel(AttentionArgs args) {
  BFIO_DYNAMIC_SHARED(memory);
  const AttentionShared<kHeadDim, true, kStages> shared = {memory};
  const int works = args.counts->long_items * args.kv.kv_heads;
  TileLoader<kHeadDim, true, kStages> loader(args, args.long_items, shared);
  for (int work = BlockIndex(); work < works; work += GridBlocks()) {
    if (args.long_items[work / args.kv.kv_heads].part >= 0) {
      RunLongItem<kHeadDim, kStages, true>(args, shared, loader, work);
    } else {
      RunLongItem<kHeadDim, kStages, false>(args, shared, loader, work);
    }
  }
}

// A lane's share of one row and query head: kColumns columns.
template <int kHeadDim>
struct MergedColumns {
  static constexpr int kColumns = kHeadDim >= 64 ? kHeadDim / 32 : 2;
  MergedRow row;
  float output[kColumns] = {};

  BFIO_DEVICE static int FirstColumn() { return LaneIndex() * kColumns; }
  BFIO_DEVICE static bool HasColumns() { return FirstColumn() < kHeadDim; }

  BFIO_DEVICE void Add(float max, float sum, const float (&more)[kColumns]) {
    const MergeScales scales = Merge(row, max, sum);
    BFIO_UNROLL
    for (int i = 0; i < kColumns; ++i) output[i] = scales.Apply(output[i], more[i]);
  }
  // Adds the parts first .. end - 1 of `entry`.
  BFIO_DEVICE void AddParts(const AttentionArgs& args, const Words4& entry, int q_head, int first, int end) {
    BFIO_UNROLL_BY(4)
    for (int part = first; part < end; ++part) {
      const int64_t slot =
          (static_cast<int64_t>(entry.y) + static_cast<int64_t>(part) * static_cast<int>(entry.z)) *
              args.q_heads +
          q_head;
      const Words2 sums = Load8(args.part_sums + 2 * slot);
      float chunk[kColumns];
      BFIO_UNROLL
      for (int i = 0; i < kColumns; i += 2) {
        const Words2 pair = Load8(args.part_outputs + slot * kHeadDim + FirstColumn() + i);
        chunk[i] = BitsFloat(pair.x);
        chunk[i + 1] = BitsFloat(pair.y);
      }
      Add(BitsFloat(sums.x), BitsFloat(sums.y), chunk);
    }
  }
  BFIO_DEVICE void Store(const AttentionArgs& args, const Words4& entry, int q_head) const {
    const float inverse = Divide(1.0f, row.sum);
    BFIO_UNROLL
    for (int i = 0; i < kColumns; i += 2) {
      StoreFinal(args, static_cast<int>(entry.x), q_head, kHeadDim, FirstColumn() + i, inverse, output[i],
                 output[i + 1]);
    }
  }
};

// Merges a row and query head with several segments: each warp of the block takes one segment at a time.
// Called by all threads.
template <int kHeadDim>
BFIO_DEVICE void CombineSegments(const AttentionArgs& args, const Words4& entry, int q_head) {
  using Merged = MergedColumns<kHeadDim>;
  BFIO_SHARED_ARRAY(float, outputs, kAttentionWarps* kHeadDim);
  BFIO_SHARED_ARRAY(float, sums, kAttentionWarps * 2);
  const int parts = static_cast<int>(entry.w);
  // Used by the first warp.
  Merged total;
  for (int round = 0; round < parts; round += kAttentionWarps * kSegmentChunks) {
    const int first = round + WarpIndex() * kSegmentChunks;
    if (first < parts && Merged::HasColumns()) {
      Merged segment;
      const int end = first + kSegmentChunks;
      segment.AddParts(args, entry, q_head, first, end < parts ? end : parts);
      BFIO_UNROLL
      for (int i = 0; i < Merged::kColumns; ++i) {
        outputs[WarpIndex() * kHeadDim + Merged::FirstColumn() + i] = segment.output[i];
      }
      if (LaneIndex() == 0) {
        sums[WarpIndex() * 2] = segment.row.max;
        sums[WarpIndex() * 2 + 1] = segment.row.sum;
      }
    }
    SyncBlock();
    if (WarpIndex() == 0 && Merged::HasColumns()) {
      for (int i = 0; i < kAttentionWarps && round + i * kSegmentChunks < parts; ++i) {
        float segment[Merged::kColumns];
        BFIO_UNROLL
        for (int c = 0; c < Merged::kColumns; ++c)
          segment[c] = outputs[i * kHeadDim + Merged::FirstColumn() + c];
        total.Add(sums[2 * i], sums[2 * i + 1], segment);
      }
    }
    SyncBlock();
  }
  if (WarpIndex() == 0 && Merged::HasColumns()) total.Store(args, entry, q_head);
}

// Merges parts. Block b takes work items b, b + blocks, ..., where a work item is a row and query head. A
// warp merges one item; where there are several segments, all warps of the block merge the items together,
// one after the other.
template <int kHeadDim>
BFIO_KERNEL(kAttentionThreads, 4)
CombineKernel(AttentionArgs args) {
  using Merged = MergedColumns<kHeadDim>;
  const int works = args.counts->combines * args.q_heads;
  const bool segments = args.counts->most_parts > kSegmentChunks;
  for (int first = BlockIndex(); first < works; first += GridBlocks() * kAttentionWarps) {
    const int own = first + WarpIndex() * GridBlocks();
    if (own < works) {
      const Words4 entry = Load16(args.combines + own / args.q_heads);
      const int parts = static_cast<int>(entry.w);
      if (parts <= kSegmentChunks && Merged::HasColumns()) {
        Merged merged;
        merged.AddParts(args, entry, own % args.q_heads, 0, parts);
        merged.Store(args, entry, own % args.q_heads);
      }
    }
    if (!segments) continue;
    for (int warp = 0; warp < kAttentionWarps; ++warp) {
      const int work = first + warp * GridBlocks();
      if (work >= works) break;
      const Words4 entry = Load16(args.combines + work / args.q_heads);
      if (static_cast<int>(entry.w) > kSegmentChunks) {
        CombineSegments<kHeadDim>(args, entry, work % args.q_heads);
      }
    }
  }
}

}  // namespace bfio::worker::gpu
