// bfio_engine_bench: the duration of a decode step on a GPU, against the lower bound of its memory bandwidth.
//
// The model has random weights of a model's shape, generated on the device. Bandwidth: a copy of 2 GiB on the
// device, bytes read plus bytes written, the best of several. Then, for every batch x context, all sequences
// are brought to the context in untimed prefill, and steps of one token each are timed, the context growing
// by one token per step:
//
//   step_ms    median step of the engine, as the worker sees it: planning, inputs, GPU, tokens
//   gpu_ms     the last step's work on the GPU alone, the best of five
//   tok/s      batch / step
//   floor_ms   (weights read by a step + keys and values of the batch) / bandwidth
//   over       step / floor: 1 is the optimum
//   MBU        floor / step, of the measured bandwidth
//   MFU        multiply-adds of the step, twice, / (step * --peak_tflops)
//   attn       the attention's share of gpu_ms
//   attn_GB/s  keys and values / attention's time
//   prefill    prompt tokens per second during prefill
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/cuda/copy_bandwidth.h"
#include "worker/engine/cuda/cuda_backend.h"
#include "worker/engine/cuda/device/cuda_device_ops.h"

ABSL_FLAG(std::string, shape, "llama-8b", "shape of the random weights: llama-8b, llama-1b or qwen3-8b");
ABSL_FLAG(double, peak_tflops, 989.5, "peak TFLOP/s for MFU; the default is an H200's dense bf16");
ABSL_FLAG(std::string, batches, "1,4,16,64", "batch sizes, separated by commas");
ABSL_FLAG(std::string, contexts, "128,1024", "cached tokens of each sequence, separated by commas");
ABSL_FLAG(int32_t, steps, 16, "timed steps per line");
ABSL_FLAG(int64_t, step_tokens, 512, "largest number of prompt tokens per step");

namespace bfio::worker {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Parses "1,4,16".
std::vector<int64_t> Numbers(const std::string& text) {
  std::vector<int64_t> numbers;
  for (const auto part : absl::StrSplit(text, ',')) {
    int64_t number = 0;
    if (absl::SimpleAtoi(part, &number) && number > 0) numbers.push_back(number);
  }
  return numbers;
}

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "bfio_engine_bench: %s\n", std::string(status.message()).c_str());
  std::exit(2);
}

template <typename T>
T Must(absl::StatusOr<T> made) {
  if (!made.ok()) Fail(made.status());
  return *std::move(made);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// How `batch` sequences get a context of at least `context` tokens, and then generate together.
struct Course {
  int64_t batch = 0, context = 0;
  // Number of timed steps.
  int64_t steps = 0;
  int64_t step_tokens = 0;

  // Upper bound of the tokens that the first sequence generates during the last one's prompt.
  int64_t lead() const { return batch * context / std::max<int64_t>(step_tokens - batch, 16) + 2; }
  int64_t max_new_tokens() const { return lead() + steps + 3; }
  EngineLimits limits() const {
    const int64_t most = context + max_new_tokens();
    return {static_cast<int32_t>(batch), batch * most, most};
  }
};

struct Measured {
  double step_s = 0;
  double prefill_tokens_per_s = 0;
  // KV tokens of all sequences together, in the median step.
  double kv_tokens = 0;
};

// REQUIRES: the engine has the course's limits and step_tokens.
Measured MeasureSteps(Engine& engine, const Course& course) {
  for (int64_t i = 0; i < course.batch; ++i) {
    SequenceRequest request;
    request.handle = static_cast<Handle>(i) + 1;
    request.prompt_length = course.context;
    request.max_new_tokens = course.max_new_tokens();
    request.ignore_eos = true;
    request.sampling.seed = static_cast<uint64_t>(i);
    if (absl::Status status = engine.Admit(request); !status.ok()) Fail(status);
  }
  StepOutput out;
  Measured measured;
  double start = Now();
  int64_t prefilled = 0;
  while (prefilled < course.batch * course.context) {
    if (absl::Status status = engine.Step(out); !status.ok()) Fail(status);
    prefilled += out.prefill_tokens;
  }
  measured.prefill_tokens_per_s = static_cast<double>(prefilled) / (Now() - start);
  std::vector<double> times, tokens;
  while (static_cast<int64_t>(times.size()) < course.steps) {
    start = Now();
    if (absl::Status status = engine.Step(out); !status.ok()) Fail(status);
    times.push_back(Now() - start);
    tokens.push_back(static_cast<double>(out.load_tokens));
  }
  if (engine.active() != course.batch) Fail(absl::InternalError("a sequence ended too early"));
  measured.step_s = Median(times);
  measured.kv_tokens = Median(tokens);
  return measured;
}

constexpr int kRepeats = 5;

ModelConfig Shape(int64_t hidden, int64_t wide, int64_t layers, int64_t heads, int64_t kv_heads, int64_t dim,
                  int64_t vocab, bool tied, bool qk_norm) {
  ModelConfig config;
  config.hidden = hidden;
  config.intermediate = wide;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = dim;
  config.vocab = vocab;
  config.max_positions = 131072;
  config.rms_epsilon = 1e-5;
  config.tied_embeddings = tied;
  config.qk_norm = qk_norm;
  config.rope.theta = 500000;
  return config;
}

absl::StatusOr<ModelConfig> ShapeOf(const std::string& name) {
  if (name == "llama-8b") return Shape(4096, 14336, 32, 32, 8, 128, 128256, false, false);
  if (name == "llama-1b") return Shape(2048, 8192, 16, 32, 8, 64, 128256, true, false);
  if (name == "qwen3-8b") return Shape(4096, 12288, 36, 32, 8, 128, 151936, false, true);
  return absl::InvalidArgumentError(
      absl::StrCat("--shape: '", name, "' is not one of llama-8b, llama-1b, qwen3-8b"));
}

struct Line {
  Measured engine;
  gpu::CudaBackend::StepTime gpu;
  double weight_bytes, kv_bytes, flops;
};

std::unique_ptr<gpu::CudaDeviceOps> Open() {
  return Must(gpu::CudaDeviceOps::Create(/*device=*/0));
}

Line Measure(const ModelConfig& config, int64_t batch, int64_t context) {
  const Course course = {batch, context, absl::GetFlag(FLAGS_steps), absl::GetFlag(FLAGS_step_tokens)};
  DecodeOptions decode;
  decode.limits = course.limits();
  decode.page_tokens = 64;
  decode.step_tokens = course.step_tokens;
  auto ops = Open();
  auto weights = Must(gpu::MakeRandomWeights(config, *ops));
  auto made = Must(gpu::CudaBackend::Create(decode, config, std::move(ops), std::move(weights),
                                            [](const std::string&) {}));
  gpu::CudaBackend& backend = *made;
  const auto engine = Must(DecodeEngine::Create(decode, std::move(made)));
  Line line;
  line.engine = MeasureSteps(*engine, course);
  line.gpu = {1e9, 1e9};
  for (int i = 0; i < kRepeats; ++i) {
    const auto time = Must(backend.TimeLastStep());
    line.gpu.step_s = std::min(line.gpu.step_s, time.step_s);
    line.gpu.attention_s = std::min(line.gpu.attention_s, time.attention_s);
  }
  line.weight_bytes = static_cast<double>(backend.weights().step_bytes);
  line.kv_bytes = static_cast<double>(backend.forward().kv_token_bytes()) * line.engine.kv_tokens;
  // 2 for each weight and token, 4 for each query element and token of context.
  line.flops =
      static_cast<double>(batch) * line.weight_bytes +
      4.0 * static_cast<double>(config.layers * config.heads * config.head_dim) * line.engine.kv_tokens;
  return line;
}

int Run() {
  const ModelConfig config = Must(ShapeOf(absl::GetFlag(FLAGS_shape)));
  double bandwidth = 0;
  {
    const auto ops = Open();
    bandwidth = testing::CopyBytesPerSecond();
    std::printf("%s, copying at %.0f GB/s\n", ops->Describe().c_str(), bandwidth / 1e9);
  }
  const double peak_flops = absl::GetFlag(FLAGS_peak_tflops) * 1e12;
  std::printf("%6s %8s %9s %9s %9s %9s %6s %6s %6s %6s %9s %12s\n", "batch", "context", "step_ms", "gpu_ms",
              "tok/s", "floor_ms", "over", "MBU", "MFU", "attn", "attn_GB/s", "prefill_tok/s");
  for (const int64_t context : Numbers(absl::GetFlag(FLAGS_contexts))) {
    for (const int64_t batch : Numbers(absl::GetFlag(FLAGS_batches))) {
      const Line line = Measure(config, batch, context);
      const double step = line.engine.step_s, floor = (line.weight_bytes + line.kv_bytes) / bandwidth;
      std::printf("%6ld %8ld %9.3f %9.3f %9.0f %9.3f %6.2f %5.0f%% %5.1f%% %5.0f%% %9.0f %12.0f\n", batch,
                  context, step * 1e3, line.gpu.step_s * 1e3, static_cast<double>(batch) / step, floor * 1e3,
                  step / floor, floor / step * 100, line.flops / (step * peak_flops) * 100,
                  line.gpu.attention_s / line.gpu.step_s * 100, line.kv_bytes / line.gpu.attention_s / 1e9,
                  line.engine.prefill_tokens_per_s);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace bfio::worker

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("what a decode step takes on a GPU, against what its memory allows");
  absl::ParseCommandLine(argc, argv);
#ifndef NDEBUG
  std::printf("WARNING: assertions are on; build with the release preset to measure\n");
#endif
  return bfio::worker::Run();
}
