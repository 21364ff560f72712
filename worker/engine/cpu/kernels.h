// The arithmetic of the CPU engine, in one version per instruction set. Matrix products, attention, norms and
// activation functions on fp32 activations and KV, with weights in fp32 or bf16 (widened in registers; all
// sums are fp32). The version is chosen at run time, so one program runs on any x86-64.
//
// Batch invariance. A row's result depends on that row alone, to the last bit: not on the number of rows in
// the batch, nor on how columns are divided among threads, nor on how a prompt was cut into chunks. Every sum
// runs over 16 lanes in blocks of fixed size and ends in a fixed tree; tiles of rows and columns only share
// loads. A BLAS chooses its kernels by the number of rows and cannot guarantee this
// (research/tests/bench/gemm_bench.cc measures what it costs). The avx2 and avx512 versions agree to the last
// bit too; generic, which has no fused multiply-add, agrees to rounding. Threads: pure functions; the caller
// divides rows or columns among threads.
#pragma once

#include <cstdint>

namespace bfio::worker::cpu {

// Partial sums of every reduction (SIMD lanes), and the number of tokens whose keys are interleaved in the
// key cache.
inline constexpr int64_t kLanes = 16;

// Always inlined, for the reason in kernels_body.h.
[[gnu::always_inline]] inline int64_t RoundUpToLanes(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// y = W x (+ bias), or y += W x (+ bias), for many x.
struct Linear {
  // [rows, inputs]
  const float* x = nullptr;
  int64_t rows = 0;
  // [outputs, inputs], fp32 or bf16 depending on the function called.
  const void* weight = nullptr;
  int64_t inputs = 0;
  // [outputs]; may be null.
  const float* bias = nullptr;
  // [rows, outputs], `y_stride` elements between rows.
  float* y = nullptr;
  int64_t y_stride = 0;
  bool add = false;
};

// Attention of consecutive rows of one sequence over its cache, for one KV head and the query heads that
// share it. The cache of one layer and KV head is in pages: keys in groups of 16 tokens, [tokens /
// 16][head_dim][16]; values [tokens][value_dim], where value_dim is head_dim rounded up to 16.
struct Attention {
  // Query of the first row and query head of the group. Layout [rows, group, head_dim].
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t rows = 0;
  int32_t group = 0;
  int32_t head_dim = 0;
  // [rows] Ascending; row r attends to tokens 0 .. positions[r].
  const int32_t* positions = nullptr;
  // Page 0's keys and values; page_stride elements from page to page.
  const float* keys = nullptr;
  const float* values = nullptr;
  int64_t page_stride = 0;
  const int32_t* pages = nullptr;
  // A multiple of 16.
  int32_t page_tokens = 0;
  float scale = 0;
  // AttentionScratch(rows, group, head_dim) floats.
  float* scratch = nullptr;
};

[[gnu::always_inline]] inline int64_t AttentionScratch(int64_t rows, int64_t group, int64_t head_dim) {
  return rows * group * (RoundUpToLanes(head_dim) + 2);
}

struct Kernels {
  // "avx512", "avx2" or "generic".
  const char* name;
  // Computes columns begin .. end - 1 of y.
  void (*linear_f32)(const Linear&, int64_t begin, int64_t end);
  void (*linear_bf16)(const Linear&, int64_t begin, int64_t end);
  void (*attend)(const Attention&);
  // y[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]; x and y may be the same.
  void (*rms_norm)(const float* x, const float* weight, float* y, int64_t n, float epsilon);
  // gate[i] = silu(gate[i]) * up[i]
  void (*silu_mul)(float* gate, const float* up, int64_t n);
};

// The best kernels that this processor can run.
const Kernels& BestKernels();
// All kernels that it can run, the best first; null-terminated.
const Kernels* const* RunnableKernels();

}  // namespace bfio::worker::cpu
