// What becomes of an item's sums: final results, parts for CombineKernel, chunks merged by a long tile.
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_RESULT_CUH_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_RESULT_CUH_

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

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_RESULT_CUH_
