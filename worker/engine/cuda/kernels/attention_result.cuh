// Stores an item's sums: as final results, as parts for CombineKernel, or merged over the chunks of a long
// tile.
#pragma once

#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/engine/cuda/kernels/attention_math.cuh"
#include "worker/engine/cuda/kernels/attention_tile.cuh"
#include "worker/engine/cuda/kernels/attention_warp.cuh"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

// Writes a row's pair of columns, divided by the sum of weights, as bf16.
BFIO_DEVICE void StoreFinal(const AttentionArgs& args, int64_t row, int q_head, int head_dim, int column,
                            float inverse, float low, float high) {
  Bf16* to = args.out + (row * args.q_heads + q_head) * head_dim + column;
  *reinterpret_cast<uint32_t*>(to) = PackBf16(Mul(low, inverse), Mul(high, inverse));
}

// Stores a tile's sums over one chunk as parts: token i's in slot part + i.
template <class Warp>
BFIO_DEVICE void StoreParts(const AttentionArgs& args, const OwnRows& rows, int tokens, int part,
                            const Warp& warp) {
  const int t = LaneIndex() % 4;
  BFIO_UNROLL
  for (int h = 0; h < 2; ++h) {
    const float sum = RowSum(warp.state.sum[h]);
    if (rows.token[h] >= tokens || !Warp::HasColumns()) continue;
    const int64_t slot = static_cast<int64_t>(part + rows.token[h]) * args.q_heads + rows.q_head[h];
    BFIO_UNROLL
    for (int n = 0; n < Warp::kOwnColumns; ++n) {
      Store8(args.part_outputs + slot * Warp::kHeadColumns + (Warp::FirstColumn() + n) * 8 + 2 * t,
             {FloatBits(warp.output[n][2 * h]), FloatBits(warp.output[n][2 * h + 1])});
    }
    if (Warp::FirstColumn() == 0 && t == 0) {
      Store8(args.part_sums + 2 * slot, {FloatBits(Mul(warp.state.max[h], args.scale)), FloatBits(sum)});
    }
  }
}

// Stores a short tile's sums as results; the chunk is the only one.
template <class Warp>
BFIO_DEVICE void StoreOnlyChunk(const AttentionArgs& args, const HeadItem& head, const OwnRows& rows,
                                const Warp& warp) {
  BFIO_UNROLL
  for (int h = 0; h < 2; ++h) {
    const float inverse = Divide(1.0f, RowSum(warp.state.sum[h]));
    if (rows.token[h] >= head.item.tokens || !Warp::HasColumns()) continue;
    BFIO_UNROLL
    for (int n = 0; n < Warp::kOwnColumns; ++n) {
      StoreFinal(args, head.item.row + rows.token[h], rows.q_head[h], Warp::kHeadColumns,
                 (Warp::FirstColumn() + n) * 8 + LaneIndex() % 4 * 2, inverse, warp.output[n][2 * h],
                 warp.output[n][2 * h + 1]);
    }
  }
}

// The merged segments of a long tile so far. Volatile, so that it stays in memory: it is needed once per 4096
// tokens, and registers limit this kernel.
template <int kColumnTiles>
struct MergedSegments {
  volatile float max[2], sum[2], output[4 * kColumnTiles];
};

// The merged chunks of one segment of a long tile so far.
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

  // Adds this segment to those before it. `first`: there are none before it.
  template <class Total>
  BFIO_DEVICE void MoveTo(Total& total, bool first) {
    BFIO_UNROLL
    for (int h = 0; h < 2; ++h) {
      MergedRow before;
      if (!first) before = {total.max[h], total.sum[h]};
      const MergeScales scales = Merge(before, row[h].max, row[h].sum);
      total.max[h] = before.max;
      total.sum[h] = before.sum;
      BFIO_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        BFIO_UNROLL
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          const float merged = first ? 0.0f : total.output[4 * n + i];
          total.output[4 * n + i] = scales.Apply(merged, output[n][i]);
        }
      }
    }
    Clear();
  }
  template <class Total>
  BFIO_DEVICE void TakeFrom(const Total& total) {
    BFIO_UNROLL
    for (int h = 0; h < 2; ++h) row[h] = {total.max[h], total.sum[h]};
    BFIO_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      BFIO_UNROLL
      for (int i = 0; i < 4; ++i) output[n][i] = total.output[4 * n + i];
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

}  // namespace bfio::worker::gpu
