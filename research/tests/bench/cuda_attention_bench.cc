// bfio_cuda_attention_bench: the bandwidth at which attention reads the KV cache, against a plain copy on the
// same GPU.
//
// Decode: for each batch and context, B sequences of one new token each, with scattered pages. It prints
// microseconds of one layer's attention (both kernels), bytes of keys and values over time, and their ratio
// to the copy's bandwidth. The copy counts bytes read and bytes written. Layers are used in turn and together
// exceed the L2 cache, as in a model. Prefill: chunks of prompts; multiply-adds that the causal mask leaves,
// over time. Before timing it compares results with a host computation, and exits with 1 when they differ.
//
// Usage: bfio_cuda_attention_bench [Q_HEADS KV_HEADS HEAD_DIM]     (defaults: 32 8 128, Llama 3.1 8B)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/cuda/attention_run.h"
#include "tests/testing/cuda/copy_bandwidth.h"

namespace bfio::testing {
namespace {

using worker::gpu::AttentionGrid;
using worker::gpu::AttentionShape;
using worker::gpu::Bf16;
using worker::gpu::KvLayout;

constexpr int kRounds = 20;
// More than the 50 MB of L2 of an H200.
constexpr int64_t kBytesInRotation = int64_t{512} << 20;

// bf16 numbers in [0.5, 2) of either sign.
std::vector<Bf16> RandomNumbers(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Bf16> numbers(size);
  for (Bf16& number : numbers) {
    const uint64_t bits = random();
    number.bits = static_cast<uint16_t>((bits & 1) << 15 | (126 + (bits >> 1 & 1)) << 7 | (bits >> 8 & 0x7f));
  }
  return numbers;
}

// Seconds of one layer's attention for `runs`.
double LayerSeconds(const AttentionShape& shape, const std::vector<AttentionRun>& runs) {
  const KvLayout layout = {shape.kv_heads, shape.page_tokens, shape.head_dim};
  int64_t kv_tokens = 0;
  int32_t page_count = 0, rows = 0;
  for (const AttentionRun& run : runs) {
    kv_tokens += run.first + run.tokens;
    page_count += (run.first + run.tokens + shape.page_tokens - 1) / shape.page_tokens;
    rows += run.tokens;
  }
  std::vector<int32_t> pages(page_count);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  worker::StepPlan step;
  step.Clear();
  for (const AttentionRun& run : runs) {
    const size_t count = (run.first + run.tokens + shape.page_tokens - 1) / shape.page_tokens;
    step.AddRun(step.runs(), run.first, std::vector<uint32_t>(run.tokens),
                absl::MakeConstSpan(pages).last(count), true);
    pages.resize(pages.size() - count);
  }
  AttentionGrid grid;
  LaunchMust(worker::gpu::FullAttentionGrid(shape.head_dim, &grid));
  const int32_t q_stride = shape.q_heads * shape.head_dim;
  const DeviceStep device(shape, step, kv_tokens, grid.long_blocks,
                          RandomNumbers(int64_t{rows} * q_stride, 2), q_stride);

  const int64_t pool = layout.PoolElements(page_count);
  const int64_t layers = std::max<int64_t>(1, kBytesInRotation / (4 * pool));
  const DeviceArray<Bf16> keys(layers * pool), values(layers * pool);
  // A million random numbers, repeated.
  const std::vector<Bf16> numbers = RandomNumbers(1 << 20, 3);
  for (const DeviceArray<Bf16>* array : {&keys, &values}) {
    for (size_t at = 0; at < array->size(); at += numbers.size()) {
      const size_t bytes = std::min(numbers.size(), array->size() - at) * sizeof(Bf16);
      CudaMust(cudaMemcpy(array->data() + at, numbers.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
  }
  const auto counts = device.plan().counts();
  if (counts.long_items == 0) grid.long_blocks = 0;
  if (counts.short_items == 0) grid.short_blocks = 0;
  if (counts.combines == 0) grid.combine_blocks = 0;
  worker::gpu::AttentionArgs args = device.Args();
  args.scale = 0.088f;
  const int64_t launches = std::max<int64_t>(kRounds, 2 * layers);
  const auto run = [&] {
    for (int64_t i = 0; i < launches; ++i) {
      args.keys = keys.data() + i % layers * pool;
      args.values = values.data() + i % layers * pool;
      LaunchMust(worker::gpu::LaunchAttention(args, grid, nullptr));
    }
  };
  run();
  return Milliseconds(run) / 1000 / launches;
}

void BenchDecode(const AttentionShape& shape, double copy) {
  std::printf("%6s %8s %12s %10s %8s\n", "batch", "context", "us/layer", "GB/s", "of copy");
  for (const int32_t context : {256, 1024, 4096, 16384}) {
    for (const int32_t batch : {1, 8, 32, 64, 128, 256}) {
      const int64_t bytes = int64_t{batch} * context * shape.kv_heads * shape.head_dim * 4;
      if (bytes > int64_t{24} << 30) continue;
      const std::vector<AttentionRun> runs(batch, {0, context - 1, 1});
      const double seconds = LayerSeconds(shape, runs);
      std::printf("%6d %8d %12.1f %10.0f %7.1f%%\n", batch, context, seconds * 1e6, bytes / seconds / 1e9,
                  100 * bytes / seconds / copy);
    }
  }
}

void BenchPrefill(const AttentionShape& shape) {
  std::printf("%6s %8s %8s %12s %10s\n", "runs", "tokens", "before", "us/layer", "TFLOP/s");
  for (const auto& [count, run] : {std::pair<int, AttentionRun>{1, {0, 0, 512}},
                                   {1, {0, 0, 2048}},
                                   {1, {0, 4096, 512}},
                                   {1, {0, 16384, 512}},
                                   {8, {0, 0, 512}}}) {
    const double seconds = LayerSeconds(shape, std::vector<AttentionRun>(count, run));
    const double pairs = count * (static_cast<double>(run.tokens) * run.first +
                                  static_cast<double>(run.tokens) * (run.tokens + 1) / 2);
    std::printf("%6d %8d %8d %12.1f %10.1f\n", count, run.tokens, run.first, seconds * 1e6,
                4 * pairs * shape.q_heads * shape.head_dim / seconds / 1e12);
  }
}

int Main(int argc, char** argv) {
  AttentionShape shape = {32, 8, 128, 16};
  if (argc == 4) shape = {std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), 16};
  if (const absl::Status status = CheckAttentionShape(shape); (argc != 1 && argc != 4) || !status.ok()) {
    std::fprintf(stderr, "usage: %s [Q_HEADS KV_HEADS HEAD_DIM]\n%s\n", argv[0], status.ToString().c_str());
    return 2;
  }
  AttentionGrid grid;
  LaunchMust(worker::gpu::FullAttentionGrid(shape.head_dim, &grid));
  const std::string difference = CheckAttention(
      {"check", shape, {{1, 4095, 1}, {2, 999, 1}, {3, 0, 100}, {4, 300, 40}}, 1, grid, grid.long_blocks},
      RunAttention);
  std::printf("results: %s\n", difference.empty() ? "as computed on the host" : difference.c_str());
  if (!difference.empty()) return 1;
  const double copy = CopyBytesPerSecond();
  std::printf("copy: %.0f GB/s; %d query heads, %d KV heads, head_dim %d, %d blocks\n\n", copy / 1e9,
              shape.q_heads, shape.kv_heads, shape.head_dim, grid.short_blocks);
  BenchDecode(shape, copy);
  std::printf("\n");
  BenchPrefill(shape);
  return 0;
}

}  // namespace
}  // namespace bfio::testing

int main(int argc, char** argv) {
  return bfio::testing::Main(argc, argv);
}
