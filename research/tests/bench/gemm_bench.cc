// Matrix products of the CPU engine beside those of OpenBLAS, by number of rows: the cost of bitwise equal
// results in any batch. One thread; [rows, 2048] x [2048, 2048].
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <vector>

#include "worker/engine/cpu/kernels.h"
#include "worker/engine/cpu/weights.h"

extern "C" void openblas_set_num_threads(int);

namespace bfio::worker {
namespace {

enum class Product { kFp32, kBf16, kOpenBlas };

void Gemm(benchmark::State& state, Product product) {
  constexpr int64_t kSize = 2048;
  const int64_t rows = state.range(0);
  const cpu::AlignedFloats weight(kSize * kSize, 0.5f), x(static_cast<size_t>(rows * kSize), 1.5f);
  const std::vector<uint16_t> narrow(kSize * kSize, cpu::ToBf16(0.5f));
  cpu::AlignedFloats y(x.size());
  cpu::Linear linear;
  linear.x = x.data();
  linear.rows = rows;
  linear.inputs = linear.y_stride = kSize;
  linear.y = y.data();
  openblas_set_num_threads(1);
  for (auto _ : state) {
    if (product == Product::kOpenBlas) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows), kSize, kSize, 1, x.data(),
                  kSize, weight.data(), kSize, 0, y.data(), kSize);
    } else if (product == Product::kFp32) {
      linear.weight = weight.data();
      cpu::BestKernels().linear_f32(linear, 0, kSize);
    } else {
      linear.weight = narrow.data();
      cpu::BestKernels().linear_bf16(linear, 0, kSize);
    }
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * static_cast<double>(rows * kSize * kSize * state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsRate);
}

void Rows(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t rows : {1, 4, 16, 64, 256, 512}) benchmark->Arg(rows);
}
BENCHMARK_CAPTURE(Gemm, fp32, Product::kFp32)->Apply(Rows);
BENCHMARK_CAPTURE(Gemm, bf16, Product::kBf16)->Apply(Rows);
BENCHMARK_CAPTURE(Gemm, openblas, Product::kOpenBlas)->Apply(Rows);

}  // namespace
}  // namespace bfio::worker

BENCHMARK_MAIN();
