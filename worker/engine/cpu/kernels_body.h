// The kernels' text, compiled once per instruction set: kernels_avx512.cc, kernels_avx2.cc,
// kernels_generic.cc include it with other compiler options, BFIO_TILE_ROWS and BFIO_TILE_COLUMNS.
//
// It may include nothing but kernels.h and fixed-width integers: an inline function of the standard library,
// compiled here for AVX-512 and merged by the linker with the copies from elsewhere, would crash older
// processors.
//
// A vector has 16 lanes in every version: one register of AVX-512, two of AVX2, four of SSE2. So all versions
// add up in the same order.
#include <cstdint>

#include "worker/engine/cpu/kernels.h"

namespace bfio::worker::cpu {
namespace {

#define BFIO_INLINE inline __attribute__((always_inline))

constexpr int kRegisterLanes = BFIO_REGISTER_BYTES / 4;
constexpr int kRegisters = kLanes / kRegisterLanes;

typedef float F __attribute__((vector_size(BFIO_REGISTER_BYTES)));
typedef int32_t I __attribute__((vector_size(BFIO_REGISTER_BYTES)));
typedef uint32_t U __attribute__((vector_size(BFIO_REGISTER_BYTES)));
typedef float F4 __attribute__((vector_size(16)));
// In memory.
typedef float Fm __attribute__((vector_size(BFIO_REGISTER_BYTES), aligned(4), may_alias));
typedef uint16_t Hm __attribute__((vector_size(BFIO_REGISTER_BYTES / 2), aligned(2), may_alias));

struct Bf16 {
  uint16_t bits;
};

// 16 floats, registers in the order of lanes.
struct V {
  F part[kRegisters];
};

// Applies `f` register by register.
template <typename Function, typename... Vs>
BFIO_INLINE V Map(const Function& f, const Vs&... vectors) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) result.part[i] = f(vectors.part[i]...);
  return result;
}
#define BFIO_LAMBDA(...) [=](__VA_ARGS__) __attribute__((always_inline))

BFIO_INLINE V Set(float value) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) result.part[i] = F{} + value;
  return result;
}
BFIO_INLINE V operator+(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x + y; }, a, b);
}
BFIO_INLINE V operator-(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x - y; }, a, b);
}
BFIO_INLINE V operator*(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x * y; }, a, b);
}
BFIO_INLINE V operator/(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x / y; }, a, b);
}
// a * b + c, fused where the processor can.
BFIO_INLINE V MulAdd(const V& a, const V& b, const V& c) {
  return Map(
      BFIO_LAMBDA(F x, F y, F z) { return x * y + z; }, a, b, c);
}
BFIO_INLINE V Max(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x > y ? x : y; }, a, b);
}

BFIO_INLINE V Load(const float* p) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) result.part[i] = *reinterpret_cast<const Fm*>(p + i * kRegisterLanes);
  return result;
}
BFIO_INLINE V Load(const Bf16* p) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    const U wide = __builtin_convertvector(*reinterpret_cast<const Hm*>(p + i * kRegisterLanes), U);
    result.part[i] = reinterpret_cast<F>(wide << 16);
  }
  return result;
}
BFIO_INLINE void Store(float* p, const V& v) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) *reinterpret_cast<Fm*>(p + i * kRegisterLanes) = v.part[i];
}
// The first n lanes, zeros after them. REQUIRES: n < 16.
template <typename T>
BFIO_INLINE V LoadTail(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}

// Folds 16 lanes to 4, lane i with i + 8 and then with i + 4, by `f`.
// A template in V, so that only the branch for this version's registers is compiled.
template <typename Vector, typename Function>
BFIO_INLINE F4 Fold(const Vector& v, const Function& f) {
  if constexpr (kRegisters == 1) {
    const auto x = v.part[0];
    const auto y = f(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
    return f(__builtin_shufflevector(y, y, 0, 1, 2, 3), __builtin_shufflevector(y, y, 4, 5, 6, 7));
  } else if constexpr (kRegisters == 2) {
    const auto y = f(v.part[0], v.part[1]);
    return f(__builtin_shufflevector(y, y, 0, 1, 2, 3), __builtin_shufflevector(y, y, 4, 5, 6, 7));
  } else {
    return f(f(v.part[0], v.part[2]), f(v.part[1], v.part[3]));
  }
}
BFIO_INLINE float Sum(const V& v) {
  const F4 s = Fold(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
  return (s[0] + s[2]) + (s[1] + s[3]);
}
BFIO_INLINE float Largest(const V& v) {
  const F4 m = Fold(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
  const float x = m[0] > m[2] ? m[0] : m[2], y = m[1] > m[3] ? m[1] : m[3];
  return x > y ? x : y;
}

// exp(x), to about 2 units in the last place; 0 below -87.3, exp(88.3) above 88.3. Range reduction and
// polynomial of the Cephes library's expf.
BFIO_INLINE F ExpRegister(F x) {
  const F low = F{} - 87.3365447f, high = F{} + 88.3762626f;
  const I vanishes = x < low;
  F r = x < low ? low : x;
  r = r > high ? high : r;
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const F shifted = r * 1.44269504088896341f + 12582912.0f;
  const F n = shifted - 12582912.0f;
  r = r - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const I exponent = (reinterpret_cast<I>(shifted) - 0x4B400000 + 127) << 23;
  const F y = p * reinterpret_cast<F>(exponent);
  return vanishes ? F{} : y;
}
BFIO_INLINE V Exp(const V& x) {
  return Map(
      BFIO_LAMBDA(F part) { return ExpRegister(part); }, x);
}
// x where lane + begin <= last, -infinity elsewhere.
BFIO_INLINE V MaskAfter(const V& x, int32_t begin, int32_t last) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    I token;
#pragma GCC unroll 16
    for (int lane = 0; lane < kRegisterLanes; ++lane) token[lane] = lane;
    token = token + (begin + i * kRegisterLanes);
    result.part[i] = token <= I{} + last ? x.part[i] : F{} - __builtin_inff();
  }
  return result;
}

// --- matrix products ---

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

// --- attention ---

// Tokens whose scores are rescaled together; part of what fixes a row's result.
constexpr int32_t kBlockTokens = 64;
constexpr int32_t kBlockVectors = kBlockTokens / kLanes;

// One query: a row and a head. Its running softmax is in the scratch: [value_dim] weighted values, then the
// largest score and the sum of weights.
struct Query {
  const float* q;
  float* state;
  int32_t position;
};

// One block of the cache.
template <typename T>
struct CacheBlock {
  int32_t begin;
  // 16-token groups that hold tokens of the sequence, at least 1.
  int32_t groups;
  const T* keys[kBlockVectors];
  const T* values[kBlockVectors];
};

// Scores, their exponentials into `weights`, and the factor by which what was summed before shrinks.
template <int H, typename T>
BFIO_INLINE void Weigh(const Attention& a, const CacheBlock<T>& block, const Query* queries,
                       int64_t value_dim, float weights[][kBlockTokens], float* shrink) {
  V scores[H][kBlockVectors] = {};
  for (int64_t i = 0; i < a.head_dim; ++i) {
    V keys[kBlockVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) keys[v] = Load(block.keys[v] + i * kLanes);
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h) {
      const V q = Set(queries[h].q[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kBlockVectors; ++v) scores[h][v] = MulAdd(q, keys[v], scores[h][v]);
    }
  }
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
    V largest = Set(-__builtin_inff());
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      const int32_t begin = block.begin + v * static_cast<int32_t>(kLanes);
      scores[h][v] = MaskAfter(scores[h][v] * Set(a.scale), begin, queries[h].position);
      largest = Max(scores[h][v], largest);
    }
    float* const softmax = queries[h].state + value_dim;
    const float block_max = Largest(largest);
    const float max = softmax[0] > block_max ? softmax[0] : block_max;
    V sum = {};
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      const V weight = Exp(scores[h][v] - Set(max));
      Store(weights[h] + v * kLanes, weight);
      sum = sum + weight;
    }
    shrink[h] = Exp(Set(softmax[0] - max)).part[0][0];
    softmax[1] = softmax[1] * shrink[h] + Sum(sum);
    softmax[0] = max;
  }
}

// Adds the block's weighted values to D vectors of the queries' states, from dimension `at` on.
template <int H, int D, typename T>
BFIO_INLINE void AddValues(const CacheBlock<T>& block, const Query* queries, int64_t value_dim, int64_t at,
                           int32_t tokens, float weights[][kBlockTokens], const float* shrink) {
  V sums[H][D];
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) sums[h][d] = Load(queries[h].state + at + d * kLanes) * Set(shrink[h]);
  }
  for (int32_t t = 0; t < tokens; ++t) {
    const T* const value = block.values[t / kLanes] + (t % kLanes) * value_dim + at;
    V values[D];
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) values[d] = Load(value + d * kLanes);
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
      for (int d = 0; d < D; ++d) sums[h][d] = MulAdd(Set(weights[h][t]), values[d], sums[h][d]);
    }
  }
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) Store(queries[h].state + at + d * kLanes, sums[h][d]);
  }
}

template <int H, typename T>
__attribute__((noinline)) void AttendBlock(const Attention& a, const CacheBlock<T>& block,
                                           const Query* queries) {
  const int64_t value_dim = RoundUpToLanes(a.head_dim);
  float weights[H][kBlockTokens];
  float shrink[H];
  Weigh<H>(a, block, queries, value_dim, weights, shrink);
  int32_t last = queries[0].position;
  for (int h = 1; h < H; ++h) last = queries[h].position > last ? queries[h].position : last;
  const int32_t left = last - block.begin + 1;
  const int32_t tokens = left < kBlockTokens ? left : kBlockTokens;
  int64_t at = 0;
  for (; at + 4 * kLanes <= value_dim; at += 4 * kLanes) {
    AddValues<H, 4>(block, queries, value_dim, at, tokens, weights, shrink);
  }
  for (; at < value_dim; at += kLanes) {
    AddValues<H, 1>(block, queries, value_dim, at, tokens, weights, shrink);
  }
}

template <typename T>
BFIO_INLINE CacheBlock<T> BlockAt(const Attention& a, int32_t begin, int32_t end) {
  const int64_t value_dim = RoundUpToLanes(a.head_dim);
  CacheBlock<T> block = {begin, 0, {}, {}};
  for (int v = 0; v < kBlockVectors; ++v) {
    const int32_t token = begin + v * static_cast<int32_t>(kLanes);
    if (token >= end) {
      // Read, masked and never used.
      block.keys[v] = block.keys[0];
      block.values[v] = block.values[0];
      continue;
    }
    const int64_t page = a.pages[token / a.page_tokens] * a.page_stride;
    const int64_t in_page = token % a.page_tokens;
    block.keys[v] = static_cast<const T*>(a.keys) + page + in_page * a.head_dim;
    block.values[v] = static_cast<const T*>(a.values) + page + in_page * value_dim;
    ++block.groups;
  }
  return block;
}

template <typename T>
void AttendOf(const Attention& a) {
  const int64_t value_dim = RoundUpToLanes(a.head_dim);
  const int64_t state_size = value_dim + 2;
  const int32_t queries = a.rows * a.group;
  const auto query = [&](int32_t i) __attribute__((always_inline)) {
    const int32_t row = i / a.group, head = i % a.group;
    return Query{a.q + row * a.q_stride + head * a.head_dim, a.scratch + i * state_size, a.positions[row]};
  };
  for (int32_t i = 0; i < queries; ++i) {
    float* const state = a.scratch + i * state_size;
    for (int64_t d = 0; d < value_dim; ++d) state[d] = 0;
    state[value_dim] = -__builtin_inff();
    state[value_dim + 1] = 0;
  }
  const int32_t end = a.positions[a.rows - 1] + 1;
  int32_t row = 0;
  for (int32_t begin = 0; begin < end; begin += kBlockTokens) {
    while (a.positions[row] < begin) ++row;  // rows that end before this block
    const CacheBlock<T> block = BlockAt<T>(a, begin, end);
    int32_t i = row * a.group;
    for (; i + 2 <= queries; i += 2) {
      const Query pair[2] = {query(i), query(i + 1)};
      AttendBlock<2>(a, block, pair);
    }
    if (i < queries) {
      const Query one = query(i);
      AttendBlock<1>(a, block, &one);
    }
  }
  for (int32_t i = 0; i < queries; ++i) {
    const float* const state = a.scratch + i * state_size;
    float* const out = a.out + i / a.group * a.out_stride + i % a.group * a.head_dim;
    const float inverse = 1 / state[value_dim + 1];
    for (int64_t d = 0; d < a.head_dim; ++d) out[d] = state[d] * inverse;
  }
}

// --- vectors ---

void RmsNorm(const float* x, const float* weight, float* y, int64_t n, float epsilon) {
  V squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = Load(x + i);
    squares = MulAdd(v, v, squares);
  }
  if (i < n) {
    const V v = LoadTail(x + i, n - i);
    squares = MulAdd(v, v, squares);
  }
  const float inverse = 1 / __builtin_sqrtf(Sum(squares) / static_cast<float>(n) + epsilon);
  for (i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
}

void SiluMul(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V g = Load(gate + i);
    Store(gate + i, g / (Exp(V{} - g) + Set(1)) * Load(up + i));
  }
  if (i < n) {
    const V g = LoadTail(gate + i, n - i);
    const V y = g / (Exp(V{} - g) + Set(1)) * LoadTail(up + i, n - i);
    float lanes[kLanes];
    Store(lanes, y);
    for (int64_t lane = 0; i + lane < n; ++lane) gate[i + lane] = lanes[lane];
  }
}

}  // namespace

extern const Kernels BFIO_KERNELS;
const Kernels BFIO_KERNELS = {
    BFIO_KERNELS_NAME, LinearOf<float>, LinearOf<Bf16>, AttendOf<float>, AttendOf<Bf16>, RmsNorm, SiluMul,
};

}  // namespace bfio::worker::cpu
