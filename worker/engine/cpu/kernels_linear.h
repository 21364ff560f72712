// Matrix products. Part of kernels_body.h, which says what it may include; compiled once per
// instruction set.
#include <cstdint>

#include "worker/engine/cpu/kernels.h"

namespace bfio::worker::cpu {
namespace {

// Inputs are added up in blocks of this many, so that a tile's rows and columns stay in the first-level
// cache.
constexpr int64_t kInputBlock = 1024;
// Columns whose block of weights stays in the second-level cache while the rows pass: 512 KiB of fp32.
constexpr int64_t kColumnBlock = 128;

// What is common to the tiles of one block of inputs.
struct Block {
  const Linear* args;
  int64_t begin, end;
  bool first, last;
};

template <int R, int C, typename W>
BFIO_INLINE void Tile(const Block& block, const W* weight, int64_t row, int64_t column) {
  const Linear& a = *block.args;
  const float* x = a.x + row * a.x_stride;
  const W* w = weight + column * a.inputs;
  V sums[R][C] = {};
  int64_t k = block.begin;
  for (; k + kLanes <= block.end; k += kLanes) {
    V b[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) b[c] = Load(w + c * a.inputs + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V left = Load(x + r * a.x_stride + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = MulAdd(left, b[c], sums[r][c]);
    }
  }
  if (k < block.end) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V left = LoadTail(x + r * a.x_stride + k, block.end - k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        sums[r][c] = MulAdd(left, LoadTail(w + c * a.inputs + k, block.end - k), sums[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* y = a.y + (row + r) * a.y_stride + column;
    if constexpr (C == 4) {
      F4 sum = Sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
      if (!block.first || a.add) sum = sum + *reinterpret_cast<const F4m*>(y);
      if (block.last && a.bias != nullptr) sum = sum + *reinterpret_cast<const F4m*>(a.bias + column);
      *reinterpret_cast<F4m*>(y) = sum;
      continue;
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      float sum = Sum(sums[r][c]);
      if (!block.first || a.add) sum += y[c];
      if (block.last && a.bias != nullptr) sum += a.bias[column + c];
      y[c] = sum;
    }
  }
}

template <int R, typename W>
__attribute__((noinline)) void TileRows(const Block& block, const W* weight, int64_t row, int64_t begin,
                                        int64_t end) {
  int64_t column = begin;
  for (; column + BFIO_TILE_COLUMNS <= end; column += BFIO_TILE_COLUMNS) {
    Tile<R, BFIO_TILE_COLUMNS>(block, weight, row, column);
  }
  for (; column < end; ++column) Tile<R, 1>(block, weight, row, column);
}

template <typename W, int R = BFIO_TILE_ROWS>
BFIO_INLINE void LastRows(const Block& block, const W* weight, int64_t row, int64_t begin, int64_t end) {
  if constexpr (R > 0) {
    if (block.args->rows - row == R) return TileRows<R>(block, weight, row, begin, end);
    LastRows<W, R - 1>(block, weight, row, begin, end);
  }
}

template <typename W>
void LinearOf(const Linear& args, int64_t begin, int64_t end) {
  const W* weight = static_cast<const W*>(args.weight);
  for (int64_t columns = begin; columns < end; columns += kColumnBlock) {
    const int64_t columns_end = columns + kColumnBlock < end ? columns + kColumnBlock : end;
    for (int64_t k = 0; k < args.inputs; k += kInputBlock) {
      const int64_t k_end = k + kInputBlock < args.inputs ? k + kInputBlock : args.inputs;
      const Block block = {&args, k, k_end, k == 0, k_end == args.inputs};
      int64_t row = 0;
      for (; row + BFIO_TILE_ROWS <= args.rows; row += BFIO_TILE_ROWS) {
        TileRows<BFIO_TILE_ROWS>(block, weight, row, columns, columns_end);
      }
      LastRows<W>(block, weight, row, columns, columns_end);
    }
  }
}

}  // namespace
}  // namespace bfio::worker::cpu
