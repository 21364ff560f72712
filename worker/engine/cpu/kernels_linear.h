// Matrix products. Part of kernels_body.h, which limits what it may include; compiled once per instruction
// set.
#include <cstdint>

#include "worker/engine/cpu/kernels.h"

namespace bfio::worker::cpu {
namespace {

// Inputs are summed in blocks of this many, so that a tile's rows and columns stay in the first-level cache.
constexpr int64_t kInputBlock = 1024;
// Columns whose block of weights stays in the second-level cache while all rows are computed: 512 KiB of
// fp32.
constexpr int64_t kColumnBlock = 128;

// Columns that are finished one after the other, all inputs of each. A single tile of rows uses each weight
// once, so the weights are best read in memory order.
BFIO_INLINE int64_t ColumnsAtOnce(int64_t rows) {
  return rows <= BFIO_TILE_ROWS ? BFIO_TILE_COLUMNS : kColumnBlock;
}

// How many tiles ahead weights are prefetched: with columns of 1,024 bf16, 16 KiB, which covers the latency
// of memory.
constexpr int64_t kTilesAhead = 2;

// Common arguments of the tiles of one block of inputs.
struct Block {
  const float* x;
  int64_t rows;
  int64_t inputs;
  // Range of inputs.
  int64_t begin, end;
  // Points to column 0 of the first row. `add`: the sums are added to it.
  float* y;
  int64_t y_stride;
  bool add;
  // [outputs], added last; may be null.
  const float* bias;
};

// Prefetches weights of a later tile. Without this a product of a few rows takes twice the time that reading
// the weights needs: the hardware prefetches only along a column, and not beyond the end of its page.
template <int C, typename W>
BFIO_INLINE void PrefetchTile(const W* w, int64_t stride) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    // An integer, because past the end of the matrix a pointer would be invalid.
    Prefetch(reinterpret_cast<uintptr_t>(w) + (kTilesAhead * C + c) * stride * sizeof(W));
  }
}

// `first`: this is the first tile of rows, so its weights come from memory rather than from a cache.
template <int R, int C, bool first, typename W>
BFIO_INLINE void Tile(const Block& b, const W* weight, int64_t row, int64_t column) {
  const float* x = b.x + row * b.inputs;
  const W* w = weight + column * b.inputs;
  V sums[R][C] = {};
  int64_t k = b.begin;
  for (; k + kLanes <= b.end; k += kLanes) {
    V weights[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) weights[c] = Load(w + c * b.inputs + k);
    if constexpr (first && C > 1) PrefetchTile<C>(w + k, b.inputs);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V left = Load(x + r * b.inputs + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = MulAdd(left, weights[c], sums[r][c]);
    }
  }
  if (k < b.end) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V left = LoadTail(x + r * b.inputs + k, b.end - k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        sums[r][c] = MulAdd(left, LoadTail(w + c * b.inputs + k, b.end - k), sums[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* const y = b.y + (row + r) * b.y_stride + column;
    if constexpr (C == 4) {
      F4 sum = Sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
      if (b.add) sum = sum + *reinterpret_cast<const F4m*>(y);
      if (b.bias != nullptr) sum = sum + *reinterpret_cast<const F4m*>(b.bias + column);
      *reinterpret_cast<F4m*>(y) = sum;
      continue;
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      float sum = Sum(sums[r][c]);
      if (b.add) sum += y[c];
      if (b.bias != nullptr) sum += b.bias[column + c];
      y[c] = sum;
    }
  }
}

template <int R, bool first, typename W>
__attribute__((noinline)) void TileRows(const Block& block, const W* weight, int64_t row, int64_t begin,
                                        int64_t end) {
  int64_t column = begin;
  for (; column + BFIO_TILE_COLUMNS <= end; column += BFIO_TILE_COLUMNS) {
    Tile<R, BFIO_TILE_COLUMNS, first>(block, weight, row, column);
  }
  for (; column < end; ++column) Tile<R, 1, first>(block, weight, row, column);
}

template <bool first, typename W, int R = BFIO_TILE_ROWS>
BFIO_INLINE void LastRows(const Block& block, const W* weight, int64_t row, int64_t begin, int64_t end) {
  if constexpr (R > 0) {
    if (block.rows - row == R) return TileRows<R, first>(block, weight, row, begin, end);
    LastRows<first, W, R - 1>(block, weight, row, begin, end);
  }
}

// Computes columns begin .. end - 1 of the block, for all rows.
template <typename W>
BFIO_INLINE void RunBlock(const Block& block, const W* weight, int64_t begin, int64_t end) {
  if (block.rows < BFIO_TILE_ROWS) return LastRows<true>(block, weight, 0, begin, end);
  TileRows<BFIO_TILE_ROWS, true>(block, weight, 0, begin, end);
  int64_t row = BFIO_TILE_ROWS;
  for (; row + BFIO_TILE_ROWS <= block.rows; row += BFIO_TILE_ROWS) {
    TileRows<BFIO_TILE_ROWS, false>(block, weight, row, begin, end);
  }
  LastRows<false>(block, weight, row, begin, end);
}

template <typename W>
void LinearOf(const Linear& args, int64_t begin, int64_t end) {
  const W* weight = static_cast<const W*>(args.weight);
  Block block = {};
  block.x = args.x;
  block.rows = args.rows;
  block.inputs = args.inputs;
  block.y = args.y;
  block.y_stride = args.y_stride;
  const int64_t width = ColumnsAtOnce(args.rows);
  for (int64_t columns = begin; columns < end; columns += width) {
    const int64_t columns_end = columns + width < end ? columns + width : end;
    for (int64_t k = 0; k < args.inputs; k += kInputBlock) {
      block.begin = k;
      block.end = k + kInputBlock < args.inputs ? k + kInputBlock : args.inputs;
      block.add = k > 0 || args.add;
      block.bias = block.end == args.inputs ? args.bias : nullptr;
      RunBlock(block, weight, columns, columns_end);
    }
  }
}

}  // namespace
}  // namespace bfio::worker::cpu
