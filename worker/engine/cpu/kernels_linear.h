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
constexpr int64_t kColumnBlock = kTermColumns;

// Columns that are finished one after the other, all inputs of each. A single tile of rows uses each weight
// once, so the weights are best read in memory order.
BFIO_INLINE int64_t ColumnsAtOnce(int64_t rows) {
  return rows <= BFIO_TILE_ROWS ? BFIO_TILE_COLUMNS : kColumnBlock;
}

// How many tiles ahead weights are prefetched: with columns of 1,024 bf16, 16 KiB, which covers the latency
// of memory.
constexpr int64_t kTilesAhead = 2;

// Common arguments of the tiles of one block of inputs: the operands, the values added to the sums, and the
// destination.
struct Block {
  const float* x;
  int64_t x_stride;
  int64_t rows;
  int64_t weight_stride;
  // Range of inputs.
  int64_t begin, end;
  // Pending partial sums in scratch (SumTermsOf), added first, the last one first.
  const float* waiting;
  int32_t waiting_count;
  int64_t waiting_distance;
  // The column at which scratch begins.
  int64_t first_column;
  // [rows, outputs], added next; may be null.
  const float* base;
  // [outputs], added last; may be null.
  const float* bias;
  int64_t base_stride;
  // Points to column `out_column` of the first row.
  float* out;
  int64_t out_stride;
  int64_t out_column;
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
  const float* x = b.x + row * b.x_stride;
  const W* w = weight + column * b.weight_stride;
  V sums[R][C] = {};
  int64_t k = b.begin;
  for (; k + kLanes <= b.end; k += kLanes) {
    V weights[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) weights[c] = Load(w + c * b.weight_stride + k);
    if constexpr (first && C > 1) PrefetchTile<C>(w + k, b.weight_stride);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V left = Load(x + r * b.x_stride + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = MulAdd(left, weights[c], sums[r][c]);
    }
  }
  if (k < b.end) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V left = LoadTail(x + r * b.x_stride + k, b.end - k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        sums[r][c] = MulAdd(left, LoadTail(w + c * b.weight_stride + k, b.end - k), sums[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* const out = b.out + (row + r) * b.out_stride + (column - b.out_column);
    const float* waiting = b.waiting;
    if (waiting != nullptr) waiting += (row + r) * kColumnBlock + (column - b.first_column);
    const float* base = b.base;
    if (base != nullptr) base += (row + r) * b.base_stride + column;
    if constexpr (C == 4) {
      F4 sum = Sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
      for (int32_t i = 0; i < b.waiting_count; ++i) {
        sum = *reinterpret_cast<const F4m*>(waiting - i * b.waiting_distance) + sum;
      }
      if (base != nullptr) sum = sum + *reinterpret_cast<const F4m*>(base);
      if (b.bias != nullptr) sum = sum + *reinterpret_cast<const F4m*>(b.bias + column);
      *reinterpret_cast<F4m*>(out) = sum;
      continue;
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      float sum = Sum(sums[r][c]);
      for (int32_t i = 0; i < b.waiting_count; ++i) sum = waiting[c - i * b.waiting_distance] + sum;
      if (base != nullptr) sum += base[c];
      if (b.bias != nullptr) sum += b.bias[column + c];
      out[c] = sum;
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
  block.x_stride = args.x_stride;
  block.rows = args.rows;
  block.weight_stride = args.inputs;
  block.base_stride = block.out_stride = args.y_stride;
  block.out = args.y;
  const int64_t width = ColumnsAtOnce(args.rows);
  for (int64_t columns = begin; columns < end; columns += width) {
    const int64_t columns_end = columns + width < end ? columns + width : end;
    for (int64_t k = 0; k < args.inputs; k += kInputBlock) {
      block.begin = k;
      block.end = k + kInputBlock < args.inputs ? k + kInputBlock : args.inputs;
      block.base = k > 0 || args.add ? args.y : nullptr;
      block.bias = block.end == args.inputs ? args.bias : nullptr;
      RunBlock(block, weight, columns, columns_end);
    }
  }
}

// Scratch is [level][rows][kColumnBlock]. Level l < `depth` holds the l-th partial sum that is pending for
// its right neighbour. Level `depth` holds the current term when its inputs take several blocks.
template <typename W>
void SumTermsOf(const TermSum& args, int64_t begin, int64_t end) {
  const W* weight = static_cast<const W*>(args.weight);
  const int64_t level = args.rows * kColumnBlock;
  Block block = {};
  block.x = args.x;
  block.x_stride = args.x_stride;
  block.rows = args.rows;
  block.weight_stride = args.weight_stride;
  block.waiting_distance = level;
  block.base_stride = args.y_stride;
  const int64_t width = ColumnsAtOnce(args.rows);
  for (int64_t columns = begin; columns < end; columns += width) {
    const int64_t columns_end = columns + width < end ? columns + width : end;
    block.first_column = columns;
    int32_t depth = 0;
    for (int32_t i = 0; i < args.count; ++i) {
      const Term& term = args.terms[i];
      const bool whole = term.node >= 0;
      int64_t k = term.begin;
      do {  // runs once even without inputs: such a term is 0
        const bool first = k == term.begin;
        block.begin = k;
        k = k + kInputBlock < term.end ? k + kInputBlock : term.end;
        block.end = k;
        const bool last = k == term.end;
        const int32_t under_way = first ? 0 : 1, folds = last ? term.folds : 0;
        block.waiting_count = under_way + folds;
        block.waiting = block.waiting_count > 0 ? args.scratch + (depth - 1 + under_way) * level : nullptr;
        block.base = last && whole && args.add ? args.y : nullptr;
        block.bias = last && whole ? args.bias : nullptr;
        if (last && whole) {
          block.out = args.y + term.node * args.node_stride;
          block.out_stride = args.y_stride;
          block.out_column = 0;
        } else {
          block.out = args.scratch + (depth - folds) * level;
          block.out_stride = kColumnBlock;
          block.out_column = columns;
        }
        RunBlock(block, weight, columns, columns_end);
      } while (k < term.end);
      depth = whole ? 0 : depth - term.folds + 1;
    }
  }
}

}  // namespace
}  // namespace bfio::worker::cpu
