#include "worker/link/engines.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/saturate.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "worker/engine/cpu/part_memory.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/decode/kv_fit.h"
#include "worker/kv/page_table.h"

namespace bfio::worker {
namespace {

constexpr double kBytesPerMiB = 1 << 20;

void LogWindow(const std::string& directory, const ModelConfig& config) {
  if (config.sliding_window == 0) return;
  spdlog::info("{}: prompt + output of a request is limited to {} tokens, the model's sliding window",
               directory, config.sliding_window);
}

void LogModel(const std::string& directory, const cpu::Weights& weights) {
  const ModelConfig& config = weights.config();
  spdlog::info("{}: {}, {} layers, hidden size {}, vocabulary {}, {:.1f} MiB of weights per step, {} kernels",
               directory, std::string(FamilyName(config.family)), config.layers, config.hidden, config.vocab,
               static_cast<double>(weights.step_bytes()) / kBytesPerMiB, cpu::BestKernels().name);
  LogWindow(directory, config);
}

// KV tokens of each of `ranks` ranks, so that the whole model and all caches fit: the given number, or
// without --kv_tokens as many as fit. RESOURCE_EXHAUSTED.
absl::StatusOr<int64_t> FitKv(const EngineOptions& options, const Model& model, int32_t ranks) {
  DecodeOptions wanted = options.cpu.decode;
  wanted.limits = options.limits;
  const int64_t asked = options.limits.kv_tokens;
  const ModelPart whole = WholeModel(model.config().layers);
  const ModelBytes bytes = cpu::BytesOf(model, options.weights);
  const auto caches = [&](int64_t tokens) {
    PageTableOptions pages = PageTableOptionsOf(wanted);
    pages.capacity_tokens = tokens;
    return SaturatedProduct(
        {cpu::PartShape(model.config(), whole.blocks.count, pages.page_tokens, PageTable::PageLimit(pages))
             .bytes(),
         ranks});
  };
  const int64_t all = caches(asked);
  const bool limited = options.memory_limit_bytes != 0;
  const int64_t memory = limited ? options.memory_limit_bytes : cpu::MachineMemory();
  // The machine also runs other programs: without a limit, an eighth of its memory is left for them.
  const int64_t spare = options.fit_kv && !limited ? memory / 8 : 0;
  const int64_t weights = bytes.Weights(whole);
  if (const auto fits = FitKvTokens(wanted, options.fit_kv, memory - spare - weights, caches)) {
    if (*fits < asked) {
      spdlog::warn("KV capacity is --kv_tokens={}, the most that fits into {:.1f} MiB of memory", *fits,
                   static_cast<double>(memory - spare) / kBytesPerMiB);
    }
    return *fits;
  }
  if (limited) {
    const absl::Status status = CheckFits(bytes, whole, all, options.memory_limit_bytes);
    return absl::Status(status.code(), absl::StrCat("--memory_limit_mb: ", status.message()));
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--kv_tokens=%d: the KV cache of %s needs up to %.1f MiB in addition to %.1f MiB of weights, and this "
      "machine has %.1f MiB: at most %d tokens per rank fit",
      asked, ranks == 1 ? "one rank" : absl::StrCat(ranks, " ranks"), all / kBytesPerMiB,
      weights / kBytesPerMiB, memory / kBytesPerMiB, MostKvTokens(asked, memory - weights, caches)));
}

}  // namespace

ModelDigest DigestOf(const EngineOptions& options, const Model& model) {
  if (options.name == "cuda") return gpu::CudaDigestOf(model.digest());
  return DigestOf(options.weights, model);
}

absl::Status CheckEngineOptions(const EngineOptions& options) {
  if (options.name == "sim" && !options.model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=", options.model,
                     ": --engine=sim, the default, does not load a checkpoint: give --engine=cpu or cuda"));
  }
  if (options.name == "sim") return absl::OkStatus();
  if (options.name != "cpu" && options.name != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine: unknown engine '", options.name, "'; must be sim, cpu or cuda"));
  }
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine=", options.name, " requires --model=DIR, the directory of a checkpoint"));
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
  BFIO_RETURN_IF_ERROR(CheckEngineOptions(options));
  Engines engines(options);
  engines.options_.sim.limits = engines.options_.cpu.decode.limits = options.limits;
  engines.options_.cuda.decode.limits = options.limits;
  engines.options_.cuda.fit_kv = options.fit_kv;
  if (options.name == "sim") {
    engines.digest_ = ModelDigest::Of(SimModelName(engines.options_.sim));
    return engines;
  }
  if (options.name == "cuda") {
    // Checked before the model is loaded, which takes minutes. Each rank has its own GPU.
    for (const int32_t device : {options.cuda.device, options.cuda.device + ranks - 1}) {
      if (absl::Status status = CheckCudaDevice(device); !status.ok())
        return absl::Status(status.code(), absl::StrCat("--engine=cuda: ", status.message()));
    }
    auto model = LoadModel(options.model);
    if (!model.ok()) {
      return absl::Status(model.status().code(), absl::StrCat("--model: ", model.status().message()));
    }
    LogWindow(options.model, (*model)->config());
    engines.digest_ = DigestOf(options, **model);
    engines.model_ = *std::move(model);
    return engines;
  }
  auto model = LoadModel(options.model);
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat("--model: ", model.status().message()));
  }
  BFIO_ASSIGN_OR_RETURN(engines.options_.cpu.decode.limits.kv_tokens, FitKv(options, **model, ranks));
  engines.digest_ = DigestOf(options, **model);
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
  return MakeSimEngine(options_.sim);
}

}  // namespace bfio::worker
