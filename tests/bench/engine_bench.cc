// bfio_engine_bench: the duration of a decode step, against the lower bound of the memory bandwidth.
//
// First it measures the memory bandwidth by reading an array of --stream_mb with the engine's number of
// threads, the best of several passes. Then, for every batch x context, all sequences are brought to the
// context in untimed prefill, and steps of one token each are timed, the context growing by one token per
// step. The first sequences decode while the others are prefilled, so the keys and values counted are those
// of the median step.
//
//   step_ms   median step
//   tok/s     batch / step
//   floor_ms  (weights read by a step + keys and values of the batch) / measured bandwidth. Weights that fit
//             into the processor's caches can be faster: then the share exceeds 100 %, and the program says
//             so.
//   share     floor / step
//   kv_share  part of the floor that is keys and values
//   prefill   prompt tokens per second during prefill
//
// With --engine=cuda the engine is the GPU's: tests/bench/engine_bench_cuda.cc describes the output.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "tests/bench/engine_bench_cuda.h"
#include "tests/bench/engine_measure.h"
#include "worker/engine/cpu/cpu_engine.h"

ABSL_FLAG(std::string, engine, "cpu", "engine to measure: cpu or cuda");
ABSL_FLAG(std::string, model, "", "directory of a checkpoint");
ABSL_FLAG(std::string, shape, "",
          "cuda: use random weights of this shape instead of --model: llama-8b, llama-1b or qwen3-8b");
ABSL_FLAG(int32_t, device, 0, "cuda: index of the GPU");
ABSL_FLAG(double, peak_tflops, 989.5, "cuda: peak TFLOP/s for MFU; the default is an H200's dense bf16");
ABSL_FLAG(int32_t, cpu_threads, 1, "cpu: number of threads");
ABSL_FLAG(std::string, batches, "1,4,16,64", "batch sizes, separated by commas");
ABSL_FLAG(std::string, contexts, "128,1024", "cached tokens of each sequence, separated by commas");
ABSL_FLAG(int32_t, steps, 16, "timed steps per line");
ABSL_FLAG(int32_t, page_size, 64, "tokens per KV page");
ABSL_FLAG(int64_t, step_tokens, 512, "largest number of prompt tokens per step");
ABSL_FLAG(std::string, weight_type, "auto", "type of the weights: auto, fp32 or bf16");
ABSL_FLAG(int64_t, stream_mb, 512, "size of the array that measures memory bandwidth, in MiB");

namespace bfio::worker {
namespace {

// Sums an array in four independent chains of the widest registers, so that memory limits the speed and not
// the additions.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t Read(const uint64_t* array,
                                                                           int64_t begin, int64_t end) {
  typedef uint64_t Wide __attribute__((vector_size(64), aligned(8), may_alias));
  Wide sums[4] = {};
  for (int64_t i = begin; i + 32 <= end; i += 32) {
    for (int j = 0; j < 4; ++j) sums[j] += *reinterpret_cast<const Wide*>(array + i + 8 * j);
  }
  const Wide all = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t sum = 0;
  for (int j = 0; j < 8; ++j) sum += all[j];
  return sum;
}

// Bytes per second of reading an array that threads share, the best of eight passes.
double ReadBandwidth(int32_t threads) {
  const int64_t count = absl::GetFlag(FLAGS_stream_mb) << 17;
  const std::vector<uint64_t> array(static_cast<size_t>(count), 1);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  cpu::Threads team(threads);
  double best = 0;
  for (int pass = 0; pass < 8; ++pass) {
    const double start = Now();
    team.Run([&](int32_t thread) {
      const auto [begin, end] = cpu::Share(count, thread, threads);
      sums[thread] = Read(array.data(), begin, end);
    });
    best = std::max(best, static_cast<double>(count) * 8 / (Now() - start));
    if (sums[0] == 0) std::printf("the array is empty\n");  // so that the sums are used
  }
  return best;
}

Measured MeasureCpu(const std::shared_ptr<const cpu::Weights>& weights, int64_t batch, int64_t context) {
  const Course course = {batch, context, absl::GetFlag(FLAGS_steps), absl::GetFlag(FLAGS_step_tokens)};
  CpuOptions options;
  options.threads = absl::GetFlag(FLAGS_cpu_threads);
  options.decode.limits = course.limits();
  options.decode.page_tokens = absl::GetFlag(FLAGS_page_size);
  options.decode.step_tokens = course.step_tokens;
  auto engine = MakeCpuEngine(options, weights);
  if (!engine.ok()) Fail(engine.status());
  return MeasureSteps(**engine, course);
}

int RunSteps() {
  if (absl::GetFlag(FLAGS_model).empty()) {
    Fail(absl::InvalidArgumentError("--model=DIR is required (bfio_make_checkpoint writes a checkpoint)"));
  }
  const auto storage = cpu::ParseStorage(absl::GetFlag(FLAGS_weight_type));
  if (!storage.ok()) Fail(storage.status());
  const auto weights = LoadCpuWeights(absl::GetFlag(FLAGS_model), *storage);
  if (!weights.ok()) Fail(weights.status());
  const int32_t threads = absl::GetFlag(FLAGS_cpu_threads);
  const double bandwidth = ReadBandwidth(threads);
  const ModelConfig& config = (*weights)->config();
  const auto kv_bytes = static_cast<double>(2 * config.layers * config.kv_heads * config.head_dim * 4);
  const auto weight_bytes = static_cast<double>((*weights)->step_bytes());
  std::printf(
      "%s kernels, %d threads, reading at %.1f GB/s; %.1f MiB of weights a step, %.0f bytes of KV a token\n",
      cpu::BestKernels().name, threads, bandwidth / 1e9, weight_bytes / (1 << 20), kv_bytes);
  std::printf("%6s %8s %9s %9s %9s %7s %9s %12s\n", "batch", "context", "step_ms", "tok/s", "floor_ms",
              "share", "kv_share", "prefill_tok/s");
  bool cached = false;
  for (const int64_t context : Numbers(absl::GetFlag(FLAGS_contexts))) {
    for (const int64_t batch : Numbers(absl::GetFlag(FLAGS_batches))) {
      const Measured measured = MeasureCpu(*weights, batch, context);
      const double kv = kv_bytes * measured.kv_tokens;
      const double floor = (weight_bytes + kv) / bandwidth, share = floor / measured.step_s;
      cached = cached || share > 1;
      std::printf("%6ld %8ld %9.3f %9.0f %9.3f %6.0f%% %8.0f%% %12.0f\n", batch, context,
                  measured.step_s * 1e3, static_cast<double>(batch) / measured.step_s, floor * 1e3,
                  share * 100, kv / (kv + weight_bytes) * 100, measured.prefill_tokens_per_s);
    }
  }
  if (cached)
    std::printf(
        "Shares above 100 %%: part of what a step reads stays in the processor's caches, or other programs\n"
        "slowed the measurement of the bandwidth.\n");
  return 0;
}

}  // namespace
}  // namespace bfio::worker

constexpr char kUsage[] =
    "what a decode step takes, against what the memory's bandwidth allows\n\n"
    "  bfio_engine_bench --model=DIR --cpu_threads=2 --batches=1,4,16 --contexts=128,1024\n"
    "  bfio_engine_bench --engine=cuda --shape=llama-8b      # random weights, on a GPU\n\n"
    "step_ms: median step; floor_ms: (weights + keys and values) / bandwidth; share: floor / step;\n"
    "kv_share: part of the floor that is keys and values; prefill_tok/s: while prompts were computed.\n"
    "bfio_make_checkpoint writes a random model for --model.";

int main(int argc, char** argv) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = [](absl::string_view file) { return absl::StrContains(file, "engine_bench"); };
  absl::SetFlagsUsageConfig(usage);
  absl::SetProgramUsageMessage(kUsage);
  absl::ParseCommandLine(argc, argv);
#ifndef NDEBUG
  std::printf("WARNING: assertions are on; build with the release preset to measure\n");
#endif
  if (absl::GetFlag(FLAGS_engine) == "cuda") {
    bfio::worker::CudaBench bench;
    bench.model = absl::GetFlag(FLAGS_model);
    bench.shape = absl::GetFlag(FLAGS_shape);
    bench.device = absl::GetFlag(FLAGS_device);
    bench.batches = bfio::worker::Numbers(absl::GetFlag(FLAGS_batches));
    bench.contexts = bfio::worker::Numbers(absl::GetFlag(FLAGS_contexts));
    bench.steps = absl::GetFlag(FLAGS_steps);
    bench.page_tokens = absl::GetFlag(FLAGS_page_size);
    bench.step_tokens = absl::GetFlag(FLAGS_step_tokens);
    bench.peak_flops = absl::GetFlag(FLAGS_peak_tflops) * 1e12;
    return bfio::worker::RunCudaBench(bench);
  }
  return bfio::worker::RunSteps();
}
