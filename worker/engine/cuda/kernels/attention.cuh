// Attention over a paged cache: decodes and pieces of prompts, query heads grouped by KV head.
//
// One algorithm, two shapes of tile. A row is a query token with one of the `group` query heads that share a
// KV head, so keys and values are read once per group. For 64 keys at a time: scores by mma.sync, softmax
// online (attention_math.cuh), weights rounded to bf16, weighted values summed up by mma.sync in fp32. Every
// kChunkTokens tokens the sums are closed and merged, chunk after chunk.
//   long tile   64 rows, of a prompt: warp w has rows 16w .. 16w + 15, walks through all chunks and merges
//   them. short tile  16 rows, mostly a decode: one chunk. Warp w makes the scores of keys 16w .. 16w + 15,
//   all warps then
//               read all scores, and warp w sums up its quarter of the columns. Chunks are merged by
//               CombineKernel.
// Whichever shape a row is in, each of its numbers is the result of the same operations in the same order:
// the mma's run over the same k, the softmax is the same code, the chunks are the same and merge in the same
// order. So a token's result is the same, to the last bit, alone or in a batch, in one step or in several,
// provided that an element of mma.sync does not depend on the others of its tile.
//
// Blocks are persistent: block b takes works b, b + blocks, ..., a work being an item for one KV head, and
// reads their number from device memory; so one grid, and one captured graph, serves every step.
//
// Arithmetic of the pipeline, head_dim 128, H200 (132 multiprocessors, 4.3 TB/s by copy): a stage is 64
// tokens * 256 bytes * 2 = 32 KB; 3 stages, 3 x 4 KB of queries and 4.5 KB of scores are 112.5 KB a block
// (long: 112 KB), so that 2 blocks share the 227 KB (registers: at most 255 for 2 x 128 threads). While a
// block works on one stage two are on their way: 64 KB a block, 128 KB a multiprocessor. Needed: 4.3 TB/s *
// 0.7 us / 132 = 23 KB. At full speed a tile may take 2 x 32 KB / 32.6 B/ns = 2 us per block. Partial
// results, written and read once in fp32, add 2 * group * 520 / (256 * 512) bytes per byte of keys and
// values: 3 % for a group of 4. These are figures by design, not measurements.
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_CUH_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_CUH_

#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/engine/cuda/kernels/attention_math.cuh"
#include "worker/engine/cuda/kernels/attention_tile.cuh"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

// What a warp keeps while it works on an item.
template <int kHeadDim, bool kLong>
struct AttentionWarp {
  using Shared = AttentionShared<kHeadDim, kLong>;
  static constexpr int kColumnTiles = kHeadDim / 8;
  // Column tiles of this warp: all, or its quarter; with head_dim 16 two warps have one each, and two none.
  static constexpr int kOwnColumns =
      kLong ? kColumnTiles : (kColumnTiles >= kAttentionWarps ? kColumnTiles / kAttentionWarps : 1);
  static constexpr int kSteps = kHeadDim / 16;

  RowState state;
  float output[kOwnColumns][4];
  // Of a short tile; a long one reads its queries from shared memory.
  uint32_t query[kLong ? 1 : kSteps][4];

  BFIO_DEVICE static int FirstRow() { return kLong ? WarpIndex() * 16 : 0; }
  BFIO_DEVICE static int FirstColumn() { return kLong ? 0 : WarpIndex() * kOwnColumns; }
  BFIO_DEVICE static bool HasColumns() { return FirstColumn() < kColumnTiles; }

  BFIO_DEVICE void Clear() {
    state.Clear();
    BFIO_UNROLL
    for (int n = 0; n < kOwnColumns; ++n) {
      BFIO_UNROLL
      for (int i = 0; i < 4; ++i) output[n][i] = 0.0f;
    }
  }

  BFIO_DEVICE static void LoadQuery(const unsigned char* tile, int step, uint32_t (&a)[4]) {
    const int lane = LaneIndex();
    LoadMatrix4(a, tile + TileOffset<kHeadDim>(FirstRow() + lane % 16, 2 * step + lane / 16));
  }
  BFIO_DEVICE void KeepQueries(const unsigned char* tile) {
    if constexpr (!kLong) {
      BFIO_UNROLL
      for (int step = 0; step < kSteps; ++step) LoadQuery(tile, step, query[step]);
    }
  }

  // score[j] = queries times keys first_token + 8j .. + 7 of the tile.
  template <int kTiles>
  BFIO_DEVICE void Scores(const unsigned char* queries, const unsigned char* keys, int first_token,
                          float (*score)[4]) const {
    const int lane = LaneIndex();
    BFIO_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      BFIO_UNROLL
      for (int i = 0; i < 4; ++i) score[j][i] = 0.0f;
    }
    BFIO_UNROLL_BY(kLong ? 2 : kSteps)
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      if constexpr (kLong) {
        LoadQuery(queries, step, a);
      } else {
        BFIO_UNROLL
        for (int i = 0; i < 4; ++i) a[i] = query[step][i];
      }
      BFIO_UNROLL
      for (int j = 0; j < kTiles; j += 2) {
        uint32_t b[4];
        const int row = first_token + 8 * j + lane % 8 + lane / 16 * 8;
        LoadMatrix4(b, keys + TileOffset<kHeadDim>(row, 2 * step + lane / 8 % 2));
        MmaBf16(*reinterpret_cast<float(*)[4]>(score[j]), a, b[0], b[1]);
        MmaBf16(*reinterpret_cast<float(*)[4]>(score[j + 1]), a, b[2], b[3]);
      }
    }
  }

  // output = output * alpha + weights times values.
  BFIO_DEVICE void AddValues(const uint32_t (&weight)[4][4], const float (&alpha)[2],
                             const unsigned char* values) {
    if (!HasColumns()) return;
    const int lane = LaneIndex();
    BFIO_UNROLL
    for (int n = 0; n < kOwnColumns; ++n) {
      BFIO_UNROLL
      for (int i = 0; i < 4; ++i) output[n][i] = Mul(output[n][i], alpha[i / 2]);
    }
    if constexpr (kOwnColumns == 1) {
      // One column tile: 32 tokens of it at a time.
      BFIO_UNROLL
      for (int step = 0; step < 4; step += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, values + TileOffset<kHeadDim>(16 * step + lane, FirstColumn()));
        MmaBf16(output[0], weight[step], b[0], b[1]);
        MmaBf16(output[0], weight[step + 1], b[2], b[3]);
      }
    } else {
      BFIO_UNROLL
      for (int step = 0; step < 4; ++step) {
        BFIO_UNROLL
        for (int n = 0; n < kOwnColumns; n += 2) {
          uint32_t b[4];
          LoadMatrix4Transposed(
              b, values + TileOffset<kHeadDim>(16 * step + lane % 16, FirstColumn() + n + lane / 16));
          MmaBf16(output[n], weight[step], b[0], b[1]);
          MmaBf16(output[n + 1], weight[step], b[2], b[3]);
        }
      }
    }
  }
};

// The tile's rows of this thread: lane / 4 of the warp's 16, and that + 8.
struct OwnRows {
  // Position of the query token: the last one that it sees.
  int position[2];
  int token[2];
  int q_head[2];

  BFIO_DEVICE OwnRows(const HeadItem& head, int group, int first_row) {
    BFIO_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + LaneIndex() / 4 + 8 * h;
      token[h] = row / group;
      q_head[h] = head.kv_head * group + row % group;
      position[h] = head.item.position + token[h];
    }
  }

  BFIO_DEVICE void Positions(int (&of_rows)[2]) const {
    of_rows[0] = position[0];
    of_rows[1] = position[1];
  }
};

// Hides from this thread's two rows what comes after their tokens. first_token: position of the tile's first
// key.
BFIO_DEVICE void HideFuture(const int (&position)[2], int first_token, float (&score)[8][4]) {
  // Of the tile's keys, the first that this thread has and the row does not see.
  const int hidden[2] = {position[0] + 1 - first_token - LaneIndex() % 4 * 2,
                         position[1] + 1 - first_token - LaneIndex() % 4 * 2};
  if (hidden[0] >= kTileTokens && hidden[1] >= kTileTokens) return;
  BFIO_UNROLL
  for (int j = 0; j < 8; ++j) {
    BFIO_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (8 * j + i % 2 >= hidden[i / 2]) score[j][i] = kMinusInfinity;
    }
  }
}

// Exchanges a short tile's scores: every warp gives those of its 16 keys and gets all.
BFIO_DEVICE void ExchangeScores(float* shared, int stride, const float (&own)[2][4], float (&score)[8][4]) {
  const int g = LaneIndex() / 4, t = LaneIndex() % 4;
  BFIO_UNROLL
  for (int j = 0; j < 2; ++j) {
    float* to = shared + g * stride + WarpIndex() * 16 + 8 * j + 2 * t;
    Store8(to, {FloatBits(own[j][0]), FloatBits(own[j][1])});
    Store8(to + 8 * stride, {FloatBits(own[j][2]), FloatBits(own[j][3])});
  }
  SyncBlock();
  BFIO_UNROLL
  for (int j = 0; j < 8; ++j) {
    BFIO_UNROLL
    for (int h = 0; h < 2; ++h) {
      const Words2 pair = Load8(shared + (g + 8 * h) * stride + 8 * j + 2 * t);
      score[j][2 * h] = BitsFloat(pair.x);
      score[j][2 * h + 1] = BitsFloat(pair.y);
    }
  }
}

// Writes a row's pair of columns, divided by the sum of weights, as bf16.
BFIO_DEVICE void StoreFinal(const AttentionArgs& args, int64_t row, int q_head, int head_dim, int column,
                            float inverse, float low, float high) {
  Bf16* to = args.out + (row * args.q_heads + q_head) * head_dim + column;
  *reinterpret_cast<uint32_t*>(to) = PackBf16(Mul(low, inverse), Mul(high, inverse));
}

// A short tile's result: final when its chunk is the only one, else a part.
template <int kHeadDim>
BFIO_DEVICE void StoreShort(const AttentionArgs& args, const HeadItem& head, const OwnRows& rows,
                            const AttentionWarp<kHeadDim, false>& warp) {
  using Warp = AttentionWarp<kHeadDim, false>;
  const int t = LaneIndex() % 4;
  BFIO_UNROLL
  for (int h = 0; h < 2; ++h) {
    const float sum = RowSum(warp.state.sum[h]);
    if (rows.token[h] >= head.item.tokens || !Warp::HasColumns()) continue;
    const int64_t slot = static_cast<int64_t>(head.item.part + rows.token[h]) * args.q_heads + rows.q_head[h];
    const float inverse = Divide(1.0f, sum);
    BFIO_UNROLL
    for (int n = 0; n < Warp::kOwnColumns; ++n) {
      const int column = (Warp::FirstColumn() + n) * 8 + 2 * t;
      const float low = warp.output[n][2 * h], high = warp.output[n][2 * h + 1];
      if (head.item.part < 0) {
        StoreFinal(args, head.item.row + rows.token[h], rows.q_head[h], kHeadDim, column, inverse, low, high);
      } else {
        Store8(args.part_outputs + slot * kHeadDim + column, {FloatBits(low), FloatBits(high)});
      }
    }
    if (head.item.part >= 0 && WarpIndex() == 0 && t == 0) {
      Store8(args.part_sums + 2 * slot, {FloatBits(Mul(warp.state.max[h], args.scale)), FloatBits(sum)});
    }
  }
}

// A long tile's chunks merged so far.
template <int kColumnTiles>
struct MergedTile {
  MergedRow row[2];
  float output[kColumnTiles][4];

  BFIO_DEVICE void Clear() {
    row[0] = row[1] = MergedRow();
    BFIO_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      BFIO_UNROLL
      for (int i = 0; i < 4; ++i) output[n][i] = 0.0f;
    }
  }

  template <class Warp>
  BFIO_DEVICE void Add(const Warp& warp, float scale) {
    BFIO_UNROLL
    for (int h = 0; h < 2; ++h) {
      const MergeScales scales = Merge(row[h], Mul(warp.state.max[h], scale), RowSum(warp.state.sum[h]));
      BFIO_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        output[n][2 * h] = scales.Apply(output[n][2 * h], warp.output[n][2 * h]);
        output[n][2 * h + 1] = scales.Apply(output[n][2 * h + 1], warp.output[n][2 * h + 1]);
      }
    }
  }

  BFIO_DEVICE void Store(const AttentionArgs& args, const HeadItem& head, const OwnRows& rows) const {
    BFIO_UNROLL
    for (int h = 0; h < 2; ++h) {
      if (rows.token[h] >= head.item.tokens) continue;
      const float inverse = Divide(1.0f, row[h].sum);
      BFIO_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        StoreFinal(args, head.item.row + rows.token[h], rows.q_head[h], kColumnTiles * 8,
                   8 * n + LaneIndex() % 4 * 2, inverse, output[n][2 * h], output[n][2 * h + 1]);
      }
    }
  }
};

// args.scale is that of log 2 (attention_launch.cuh multiplies it).
template <int kHeadDim>
BFIO_KERNEL(kAttentionThreads, 2)
ShortAttentionKernel(AttentionArgs args) {
  using Shared = AttentionShared<kHeadDim, false>;
  BFIO_DYNAMIC_SHARED(memory);
  const Shared shared = {memory};
  const int works = args.counts->short_items * args.kv.kv_heads;
  const int group = args.q_heads / args.kv.kv_heads;
  if (BlockIndex() >= works) return;

  TileLoader<kHeadDim, false> loader(args, args.short_items, shared);
  loader.Open(BlockIndex());
  int stage = 0;
  BFIO_UNROLL
  for (int ahead = 0; ahead < kAttentionStages - 1; ++ahead) {
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
      WaitAsync<kAttentionStages - 2>();
      // The tile is there for all, and all are done with the one whose stage is now copied to.
      SyncBlock();
      loader.Copy(stage == 0 ? kAttentionStages - 1 : stage - 1);
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
      stage = stage == kAttentionStages - 1 ? 0 : stage + 1;
    }
    StoreShort<kHeadDim>(args, head, rows, warp);
  }
}

template <int kHeadDim>
BFIO_KERNEL(kAttentionThreads, 2)
LongAttentionKernel(AttentionArgs args) {
  using Shared = AttentionShared<kHeadDim, true>;
  using Warp = AttentionWarp<kHeadDim, true>;
  BFIO_DYNAMIC_SHARED(memory);
  const Shared shared = {memory};
  const int works = args.counts->long_items * args.kv.kv_heads;
  const int group = args.q_heads / args.kv.kv_heads;

  TileLoader<kHeadDim, true> loader(args, args.long_items, shared);
  Warp warp;
  MergedTile<kHeadDim / 8> merged;
  for (int work = BlockIndex(); work < works; work += GridBlocks()) {
    // All are done with the item before. (Its last copies were waited for: none is under way.)
    SyncBlock();
    loader.Open(work);
    const int end = loader.head().item.end;
    int position[2];
    OwnRows(loader.head(), group, Warp::FirstRow()).Positions(position);
    BFIO_UNROLL
    for (int ahead = 0; ahead < kAttentionStages - 1; ++ahead) {
      loader.Copy(ahead);
      CommitAsync();
      loader.Advance(0, 1);
    }
    int stage = 0;
    merged.Clear();
    warp.Clear();
    for (int token = 0; token < end; token += kTileTokens) {
      WaitAsync<kAttentionStages - 2>();
      SyncBlock();
      loader.Copy(stage == 0 ? kAttentionStages - 1 : stage - 1);
      CommitAsync();
      loader.Advance(0, 1);
      float score[8][4], alpha[2];
      uint32_t weight[4][4];
      warp.template Scores<8>(shared.Queries(0), shared.Keys(stage), 0, score);
      HideFuture(position, token, score);
      OnlineSoftmax(score, args.scale, warp.state, weight, alpha);
      warp.AddValues(weight, alpha, shared.Values(stage));
      stage = stage == kAttentionStages - 1 ? 0 : stage + 1;
      const int next = token + kTileTokens;
      if (next % kChunkTokens == 0 || next >= end) {
        merged.Add(warp, args.scale);
        warp.Clear();
      }
    }
    // Read again rather than kept: registers are what this kernel is short of.
    const HeadItem head = HeadItem::Load(args.long_items, work, args.kv.kv_heads);
    merged.Store(args, head, OwnRows(head, group, Warp::FirstRow()));
  }
}

// Merges the parts of short tiles: a warp for each row and query head.
template <int kHeadDim>
BFIO_KERNEL(kAttentionThreads, 4)
CombineKernel(AttentionArgs args) {
  constexpr int kColumns = kHeadDim >= 64 ? kHeadDim / 32 : 2;
  const int column = LaneIndex() * kColumns;
  const int works = args.counts->combines * args.q_heads;
  for (int work = BlockIndex() * kAttentionWarps + WarpIndex(); work < works;
       work += GridBlocks() * kAttentionWarps) {
    const Words4 entry = Load16(args.combines + work / args.q_heads);
    const int row = static_cast<int>(entry.x), stride = static_cast<int>(entry.z);
    const int q_head = work % args.q_heads, parts = static_cast<int>(entry.w);
    if (column >= kHeadDim) continue;
    MergedRow merged;
    float output[kColumns] = {};
    BFIO_UNROLL_BY(4)
    for (int part = 0; part < parts; ++part) {
      const int64_t slot =
          (static_cast<int64_t>(entry.y) + static_cast<int64_t>(part) * stride) * args.q_heads + q_head;
      const Words2 sums = Load8(args.part_sums + 2 * slot);
      float chunk[kColumns];
      BFIO_UNROLL
      for (int i = 0; i < kColumns; i += 2) {
        const Words2 pair = Load8(args.part_outputs + slot * kHeadDim + column + i);
        chunk[i] = BitsFloat(pair.x);
        chunk[i + 1] = BitsFloat(pair.y);
      }
      const MergeScales scales = Merge(merged, BitsFloat(sums.x), BitsFloat(sums.y));
      BFIO_UNROLL
      for (int i = 0; i < kColumns; ++i) output[i] = scales.Apply(output[i], chunk[i]);
    }
    const float inverse = Divide(1.0f, merged.sum);
    BFIO_UNROLL
    for (int i = 0; i < kColumns; i += 2) {
      StoreFinal(args, row, q_head, kHeadDim, column + i, inverse, output[i], output[i + 1]);
    }
  }
}

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_CUH_
