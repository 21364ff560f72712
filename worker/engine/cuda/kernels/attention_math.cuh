// The arithmetic of attention, shared by all of its kernels so that they agree to the last bit. Online
// softmax over tiles of keys ("FlashAttention-2", Dao 2023, section 3.1), and the merging of partial results.
// A row's numbers depend only on its own scores, in the order of their positions. Masked keys change none of
// its bits: their weights are 0, the maximum stays, and sums are scaled by 1. Mul, Add and Fma are written
// out because a compiler may otherwise fuse the same expression in one place and not in another. Maxima "in
// units of log 2" are scores times 1 / log(2): weights are powers of two.
#pragma once

#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

inline constexpr int kTileTokens = 64;
inline constexpr float kMinusInfinity = -__builtin_huge_valf();

// Softmax state of a thread's two rows of a 16-row fragment (row lane / 4, and that + 8), over a chunk so
// far.
struct RowState {
  // The largest score, and the sum of weights over this thread's columns.
  float max[2];
  float sum[2];

  BFIO_DEVICE void Clear() {
    max[0] = max[1] = kMinusInfinity;
    sum[0] = sum[1] = 0.0f;
  }
};

// The factor for sums when the maximum changes; 1 if it does not change, also for minus infinity.
BFIO_DEVICE float Rescale(float from, float to) {
  return from == to ? 1.0f : Exp2(Sub(from, to));
}

// Input: the scores of a 16 x 64 tile as mma C fragments, score[j] being columns 8j .. 8j + 7. Output: their
// weights as A fragments, weight[i] being columns 16i .. 16i + 15. The caller multiplies earlier sums by
// alpha. `scale` > 0 converts scores to units of log 2. REQUIRES: masked scores are minus infinity.
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

// The whole sum of a row, from the shares of its four threads.
BFIO_DEVICE float RowSum(float share) {
  share = Add(share, ShuffleXor(share, 1));
  return Add(share, ShuffleXor(share, 2));
}

// The chunks of a row merged so far. `max` is in units of log 2.
struct MergedRow {
  float max = kMinusInfinity;
  float sum = 0.0f;
};

// The factors of the existing and of the added sums in a merge.
struct MergeScales {
  float kept;
  float added;

  BFIO_DEVICE float Apply(float merged, float chunk) const { return Fma(merged, kept, Mul(chunk, added)); }
};

// Merges the next chunk's maximum (in units of log 2) and sum; the caller then merges the outputs with the
// scales.
BFIO_DEVICE MergeScales Merge(MergedRow& row, float max, float sum) {
  const float largest = Max(row.max, max);
  const MergeScales scales = {Rescale(row.max, largest), Rescale(max, largest)};
  row.sum = scales.Apply(row.sum, sum);
  row.max = largest;
  return scales;
}

}  // namespace bfio::worker::gpu
