// The computation of one warp on a tile of keys and values: scores, and sums of weighted values. Fragments
// are those of mma.m16n8k16: with g = lane / 4 and t = lane % 4 a thread has rows g and g + 8 of its warp's
// 16 query rows, and of every 8 columns 2t and 2t + 1.
#pragma once

#include "worker/engine/cuda/kernels/attention_math.cuh"
#include "worker/engine/cuda/kernels/attention_tile.cuh"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

// A warp's state while it processes an item.
template <int kHeadDim, bool kLong>
struct AttentionWarp {
  using Shared = AttentionShared<kHeadDim, kLong>;
  static constexpr int kHeadColumns = kHeadDim;
  static constexpr int kColumnTiles = kHeadDim / 8;
  // Column tiles of this warp: all, or its quarter. With head_dim 16, two warps have one each and two have
  // none.
  static constexpr int kOwnColumns =
      kLong ? kColumnTiles : (kColumnTiles >= kAttentionWarps ? kColumnTiles / kAttentionWarps : 1);
  static constexpr int kSteps = kHeadDim / 16;

  RowState state;
  float output[kOwnColumns][4];
  // Used by a short tile; a long one reads its queries from shared memory.
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
        MmaBf16(score[j], a, b[0], b[1]);
        MmaBf16(score[j + 1], a, b[2], b[3]);
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
      // For one column tile: 32 tokens at a time.
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

// The rows of this thread in the tile: lane / 4 of the warp's 16, and that + 8.
struct OwnRows {
  // Position of the query token: the last key that it attends to.
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

// Masks, in this thread's two rows, the keys that come after the rows' tokens. first_token: position of the
// tile's first key.
BFIO_DEVICE void HideFuture(const int (&position)[2], int first_token, float (&score)[8][4]) {
  // Offset in the tile of the first key of this thread that the row does not attend to.
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

// Exchanges a short tile's scores: every warp contributes those of its 16 keys and receives all.
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

}  // namespace bfio::worker::gpu
