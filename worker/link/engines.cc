#include "worker/link/engines.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "worker/engine/cpu/part_memory.h"
#include "worker/kv/page_table.h"

namespace bfio::worker {
namespace {

constexpr double kBytesPerMiB = 1 << 20;

void LogModel(const std::string& directory, const cpu::Weights& weights) {
  const ModelConfig& config = weights.config();
  spdlog::info("{}: {} of {} layers, {} wide, vocabulary of {}, {:.1f} MiB of weights a step, {} kernels",
               directory, std::string(FamilyName(config.family)), config.layers, config.hidden, config.vocab,
               static_cast<double>(weights.step_bytes()) / kBytesPerMiB, cpu::BestKernels().name);
}

// Whether the whole model and its caches fit.
absl::Status CheckMemory(const EngineOptions& options, const Model& model, int32_t ranks) {
  if (options.memory_limit_bytes == 0) return absl::OkStatus();
  DecodeOptions decode = options.cpu.decode;
  decode.limits = options.limits;
  const int64_t layers = model.config().layers;
  const int64_t kv = cpu::PartShape(model.config(), layers, decode.page_tokens,
                                    PageTable::PageLimit(PageTableOptionsOf(decode)), options.cpu.kv)
                         .bytes();
  return CheckFits(cpu::BytesOf(model, options.weights, options.cpu.kv), WholeModel(layers), kv * ranks,
                   options.memory_limit_bytes);
}

}  // namespace

absl::Status CheckEngineOptions(const EngineOptions& options) {
  if (options.name == "sim" && options.cpu.decode.share_mlp) {
    return absl::InvalidArgumentError(
        "--mlp=tp needs an engine with a model that it can share out: --engine=cpu or cuda");
  }
  if (options.name == "sim") return absl::OkStatus();
  if (options.name != "cpu" && options.name != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine: no engine '", options.name, "': there are sim, cpu and cuda"));
  }
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine=", options.name, " needs --model=DIR, the directory of a checkpoint"));
  }
  if (options.name == "cuda") {
    CudaOptions cuda = options.cuda;
    cuda.decode.limits = options.limits;
    return CheckDecodeOptions(cuda.decode);
  }
  CpuOptions cpu = options.cpu;
  cpu.decode.limits = options.limits;
  return CheckCpuOptions(cpu);
}

absl::StatusOr<Engines> Engines::Create(const EngineOptions& options, int32_t ranks) {
  if (absl::Status status = CheckEngineOptions(options); !status.ok()) return status;
  Engines engines(options);
  engines.options_.sim.limits = engines.options_.cpu.decode.limits = options.limits;
  engines.options_.cuda.decode.limits = options.limits;
  if (options.name == "sim") return engines;
  if (options.name == "cuda") {
    // Before minutes go by.
    if (absl::Status status = CheckCudaDevice(options.cuda.device); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--engine=cuda: ", status.message()));
    }
    auto model = LoadModel(options.model);
    if (!model.ok()) {
      return absl::Status(model.status().code(), absl::StrCat("--model: ", model.status().message()));
    }
    engines.model_ = *std::move(model);
    return engines;
  }
  auto model = LoadModel(options.model);
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat("--model: ", model.status().message()));
  }
  if (absl::Status status = CheckMemory(options, **model, ranks); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("--memory_limit_mb: ", status.message()));
  }
  engines.weights_ = cpu::Weights::Make(*std::move(model), options.weights);
  LogModel(options.model, *engines.weights_);
  return engines;
}

absl::StatusOr<std::unique_ptr<Engine>> Engines::Make(int32_t rank) const {
  if (weights_ != nullptr) return MakeCpuEngine(options_.cpu, weights_);
  if (model_ != nullptr) {
    CudaOptions cuda = options_.cuda;
    cuda.device += rank;
    return MakeCudaEngine(cuda, *model_, [](const std::string& text) { spdlog::info("{}", text); });
  }
  SimOptions sim = options_.sim;
  sim.seed += static_cast<uint64_t>(rank);  // so that the ranks' jitter differs
  return SimEngine::Create(sim);
}

}  // namespace bfio::worker
