// The arithmetic of attention, shared by all of its kernels so that they agree to the last bit.
//
// Purpose: softmax online over tiles of keys ("FlashAttention-2", Dao 2023, section 3.1), and the merging of
// partial results. A row's numbers depend on its own scores alone, in the order of their positions; what a
// row cannot see changes none of its bits: its weights are 0 there, its maximum stays, and it is scaled by 1.
// Mul, Add and Fma are spelt out since a compiler may otherwise fuse the same expression here and not there.
// Maxima are kept as scores times 1 / log(2) where they are named in log 2: weights are powers of two.
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_MATH_CUH_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_MATH_CUH_

#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

inline constexpr int kTileTokens = 64;
inline constexpr float kMinusInfinity = -__builtin_huge_valf();

// Softmax of a thread's two rows of a 16-row fragment (row lane / 4, and that + 8), over a chunk so far.
struct RowState {
  // The largest score; and this thread's columns' share of the sum of weights.
  float max[2];
  float sum[2];

  BFIO_DEVICE void Clear() {
    max[0] = max[1] = kMinusInfinity;
    sum[0] = sum[1] = 0.0f;
  }
};

// 1 for no change, also of minus infinity.
BFIO_DEVICE float Rescale(float from, float to) {
  return from == to ? 1.0f : Exp2(Sub(from, to));
}

// Takes the scores of a 16 x 64 tile as mma's C fragments, score[j] being columns 8j .. 8j + 7, and gives
// their weights as A fragments, weight[i] being columns 16i .. 16i + 15. Earlier sums are to be multiplied by
// alpha. `scale` > 0 makes scores log 2 of weights. REQUIRES: what a row must not see is minus infinity.
BFIO_DEVICE void OnlineSoftmax(const float (&score)[8][4], float scale, RowState& state,
                               uint32_t (&weight)[4][4], float (&alpha)[2]) {
  BFIO_UNROLL
  for (int h = 0; h < 2; ++h) {
    float largest = state.max[h];
    BFIO_UNROLL
    for (int j = 0; j < 8; ++j) largest = Max(largest, Max(score[j][2 * h], score[j][2 * h + 1]));
    largest = Max(largest, ShuffleXor(largest, 1));
    largest = Max(largest, ShuffleXor(largest, 2));
    alpha[h] = Rescale(Mul(state.max[h], scale), Mul(largest, scale));
    const float base = largest == kMinusInfinity ? 0.0f : Mul(largest, scale);
    float sum = 0.0f;
    BFIO_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float low = Exp2(Fma(score[j][2 * h], scale, -base));
      const float high = Exp2(Fma(score[j][2 * h + 1], scale, -base));
      sum = Add(sum, Add(low, high));
      weight[j / 2][j % 2 * 2 + h] = PackBf16(low, high);
    }
    state.sum[h] = Fma(state.sum[h], alpha[h], sum);
    state.max[h] = largest;
  }
}

// The whole sum of a row, from its four threads' shares.
BFIO_DEVICE float RowSum(float share) {
  share = Add(share, ShuffleXor(share, 1));
  return Add(share, ShuffleXor(share, 2));
}

// Chunks of a row merged so far. `max` is in log 2.
struct MergedRow {
  float max = kMinusInfinity;
  float sum = 0.0f;
};

// How a merge weighs what is there and what is added.
struct MergeScales {
  float kept;
  float added;

  BFIO_DEVICE float Apply(float merged, float chunk) const { return Fma(merged, kept, Mul(chunk, added)); }
};

// Merges the next chunk's maximum (in log 2) and sum; the outputs are then merged by the scales.
BFIO_DEVICE MergeScales Merge(MergedRow& row, float max, float sum) {
  const float largest = Max(row.max, max);
  const MergeScales scales = {Rescale(row.max, largest), Rescale(max, largest)};
  row.sum = scales.Apply(row.sum, sum);
  row.max = largest;
  return scales;
}

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_MATH_CUH_
