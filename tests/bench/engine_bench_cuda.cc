// The duration of a decode step on a GPU, against the lower bound of its memory bandwidth.
//
// The model is a checkpoint, or random weights of a model's shape, generated on the device. Bandwidth: a copy
// of 2 GiB on the device, bytes read plus bytes written, the best of several. Then, for every batch x
// context:
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
#include "tests/bench/engine_bench_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/engine_measure.h"
#include "tests/testing/cuda/copy_bandwidth.h"
#include "worker/engine/cuda/cuda_backend.h"
#include "worker/engine/cuda/device/cuda_device_ops.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {
namespace {

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

class Bench {
 public:
  explicit Bench(const CudaBench& options) : options_(options) {
    if (!options.model.empty()) {
      auto model = LoadModel(options.model);
      if (!model.ok()) Fail(model.status());
      model_ = *std::move(model);
      config_ = model_->config();
    } else {
      auto config = ShapeOf(options.shape);
      if (!config.ok()) Fail(config.status());
      config_ = *config;
    }
  }

  std::unique_ptr<gpu::CudaDeviceOps> Open() const {
    auto ops = gpu::CudaDeviceOps::Create(options_.device);
    if (!ops.ok()) Fail(ops.status());
    return *std::move(ops);
  }

  Line Measure(int64_t batch, int64_t context) const {
    const Course course = {batch, context, options_.steps, options_.step_tokens};
    DecodeOptions decode;
    decode.limits = course.limits();
    decode.page_tokens = options_.page_tokens;
    decode.step_tokens = course.step_tokens;
    auto ops = Open();
    const gpu::Progress quiet = [](const std::string&) {};
    auto weights =
        model_ != nullptr ? gpu::UploadWeights(*model_, *ops, quiet) : gpu::MakeRandomWeights(config_, *ops);
    if (!weights.ok()) Fail(weights.status());
    auto made = gpu::CudaBackend::Create(decode, config_, std::move(ops), *std::move(weights), quiet);
    if (!made.ok()) Fail(made.status());
    gpu::CudaBackend& backend = **made;
    auto engine = DecodeEngine::Create(decode, *std::move(made));
    if (!engine.ok()) Fail(engine.status());
    Line line;
    line.engine = MeasureSteps(**engine, course);
    line.gpu = {1e9, 1e9};
    for (int i = 0; i < kRepeats; ++i) {
      const auto time = backend.TimeLastStep();
      if (!time.ok()) Fail(time.status());
      line.gpu.step_s = std::min(line.gpu.step_s, time->step_s);
      line.gpu.attention_s = std::min(line.gpu.attention_s, time->attention_s);
    }
    line.weight_bytes = static_cast<double>(backend.weights().step_bytes);
    line.kv_bytes = static_cast<double>(backend.forward().kv_token_bytes()) * line.engine.kv_tokens;
    // 2 for each weight and token, 4 for each query element and token of context.
    line.flops =
        static_cast<double>(batch) * line.weight_bytes +
        4.0 * static_cast<double>(config_.layers * config_.heads * config_.head_dim) * line.engine.kv_tokens;
    return line;
  }

 private:
  const CudaBench& options_;
  std::unique_ptr<Model> model_;
  ModelConfig config_;
};

}  // namespace

int RunCudaBench(const CudaBench& options) {
  const Bench bench(options);
  double bandwidth = 0;
  {
    const auto ops = bench.Open();
    bandwidth = testing::CopyBytesPerSecond();
    std::printf("%s, copying at %.0f GB/s\n", ops->Describe().c_str(), bandwidth / 1e9);
  }
  std::printf("%6s %8s %9s %9s %9s %9s %6s %6s %6s %6s %9s %12s\n", "batch", "context", "step_ms", "gpu_ms",
              "tok/s", "floor_ms", "over", "MBU", "MFU", "attn", "attn_GB/s", "prefill_tok/s");
  for (const int64_t context : options.contexts) {
    for (const int64_t batch : options.batches) {
      const Line line = bench.Measure(batch, context);
      const double step = line.engine.step_s, floor = (line.weight_bytes + line.kv_bytes) / bandwidth;
      std::printf("%6ld %8ld %9.3f %9.3f %9.0f %9.3f %6.2f %5.0f%% %5.1f%% %5.0f%% %9.0f %12.0f\n", batch,
                  context, step * 1e3, line.gpu.step_s * 1e3, static_cast<double>(batch) / step, floor * 1e3,
                  step / floor, floor / step * 100, line.flops / (step * options.peak_flops) * 100,
                  line.gpu.attention_s / line.gpu.step_s * 100, line.kv_bytes / line.gpu.attention_s / 1e9,
                  line.engine.prefill_tokens_per_s);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace bfio::worker
