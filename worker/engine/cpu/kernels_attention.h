// Attention over a paged cache. Part of kernels_body.h, which limits what it may include; compiled once per
// instruction set.
#include <cstdint>

#include "worker/engine/cpu/kernels.h"

namespace bfio::worker::cpu {
namespace {

// Tokens whose scores are rescaled together. Changing it changes results in their last bits.
constexpr int32_t kBlockTokens = 64;
constexpr int32_t kBlockVectors = kBlockTokens / kLanes;

// One query: a row and a head. The state of its online softmax is in scratch: [value_dim] weighted values,
// then the largest score and the sum of weights.
struct Query {
  const float* q;
  float* state;
  int32_t position;
};

// One block of kBlockTokens tokens of the cache.
struct CacheBlock {
  int32_t begin;
  // 16-token groups that hold tokens of the sequence, at least 1.
  int32_t groups;
  const float* keys[kBlockVectors];
  const float* values[kBlockVectors];
};

// Computes scores, their exponentials into `weights`, and the factor by which earlier sums shrink. With the
// block's first queries, the same positions of `next` are prefetched, here and in AddValues: a block is
// loaded from memory while the one before it is used.
template <int H, bool first>
BFIO_INLINE void Weigh(const Attention& a, const CacheBlock& block, const CacheBlock& next,
                       const Query* queries, int64_t value_dim, float weights[][kBlockTokens],
                       float* shrink) {
  V scores[H][kBlockVectors] = {};
  for (int64_t i = 0; i < a.head_dim; ++i) {
    V keys[kBlockVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      keys[v] = Load(block.keys[v] + i * kLanes);
      if constexpr (first) Prefetch(reinterpret_cast<uintptr_t>(next.keys[v] + i * kLanes));
    }
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
template <int H, int D, bool first>
BFIO_INLINE void AddValues(const CacheBlock& block, const CacheBlock& next, const Query* queries,
                           int64_t value_dim, int64_t at, int32_t tokens, float weights[][kBlockTokens],
                           const float* shrink) {
  V sums[H][D];
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) sums[h][d] = Load(queries[h].state + at + d * kLanes) * Set(shrink[h]);
  }
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t place = (t % kLanes) * value_dim + at;
    const float* const value = block.values[t / kLanes] + place;
    const float* const later = next.values[t / kLanes] + place;
    V values[D];
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) {
      values[d] = Load(value + d * kLanes);
      if constexpr (first) Prefetch(reinterpret_cast<uintptr_t>(later + d * kLanes));
    }
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

template <int H, bool first>
__attribute__((noinline)) void AttendBlock(const Attention& a, const CacheBlock& block,
                                           const CacheBlock& next, const Query* queries) {
  const int64_t value_dim = RoundUpToLanes(a.head_dim);
  float weights[H][kBlockTokens];
  float shrink[H];
  Weigh<H, first>(a, block, next, queries, value_dim, weights, shrink);
  int32_t last = queries[0].position;
  for (int h = 1; h < H; ++h) last = queries[h].position > last ? queries[h].position : last;
  const int32_t left = last - block.begin + 1;
  const int32_t tokens = left < kBlockTokens ? left : kBlockTokens;
  int64_t at = 0;
  for (; at + 4 * kLanes <= value_dim; at += 4 * kLanes) {
    AddValues<H, 4, first>(block, next, queries, value_dim, at, tokens, weights, shrink);
  }
  for (; at < value_dim; at += kLanes) {
    AddValues<H, 1, first>(block, next, queries, value_dim, at, tokens, weights, shrink);
  }
}

BFIO_INLINE CacheBlock BlockAt(const Attention& a, int32_t begin, int32_t end) {
  const int64_t value_dim = RoundUpToLanes(a.head_dim);
  CacheBlock block = {begin, 0, {}, {}};
  for (int v = 0; v < kBlockVectors; ++v) {
    const int32_t token = begin + v * static_cast<int32_t>(kLanes);
    if (token >= end) {
      // Read and masked; the result does not depend on it.
      block.keys[v] = block.keys[0];
      block.values[v] = block.values[0];
      continue;
    }
    const int64_t page = a.pages[token / a.page_tokens] * a.page_stride;
    const int64_t in_page = token % a.page_tokens;
    block.keys[v] = a.keys + page + in_page * a.head_dim;
    block.values[v] = a.values + page + in_page * value_dim;
    ++block.groups;
  }
  return block;
}

void Attend(const Attention& a) {
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
  CacheBlock following = BlockAt(a, 0, end);
  for (int32_t begin = 0; begin < end; begin += kBlockTokens) {
    while (a.positions[row] < begin) ++row;  // rows that end before this block
    const CacheBlock block = following;
    if (begin + kBlockTokens < end) following = BlockAt(a, begin + kBlockTokens, end);
    int32_t i = row * a.group;
    if (queries - i >= 2) {
      const Query pair[2] = {query(i), query(i + 1)};
      AttendBlock<2, true>(a, block, following, pair);
      for (i += 2; i + 2 <= queries; i += 2) {
        const Query other[2] = {query(i), query(i + 1)};
        AttendBlock<2, false>(a, block, following, other);
      }
    }
    if (i < queries) {
      const Query one = query(i);
      if (i == row * a.group) {
        AttendBlock<1, true>(a, block, following, &one);
      } else {
        AttendBlock<1, false>(a, block, following, &one);
      }
    }
  }
  for (int32_t i = 0; i < queries; ++i) {
    const float* const state = a.scratch + i * state_size;
    float* const out = a.out + i / a.group * a.out_stride + i % a.group * a.head_dim;
    const float inverse = 1 / state[value_dim + 1];
    for (int64_t d = 0; d < a.head_dim; ++d) out[d] = state[d] * inverse;
  }
}

}  // namespace
}  // namespace bfio::worker::cpu
