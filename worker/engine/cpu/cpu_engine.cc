#include "worker/engine/cpu/cpu_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {
namespace {

cpu::KvShape ShapeOf(const CpuOptions& options, const ModelConfig& config) {
  cpu::KvShape shape;
  shape.layers = config.layers;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.page_tokens = options.decode.page_tokens;
  shape.pages = PageTable::PageLimit(PageTableOptionsOf(options.decode));
  shape.bf16 = options.kv == cpu::Storage::kBf16;
  return shape;
}

}  // namespace

absl::Status CheckCpuOptions(const CpuOptions& options) {
  if (absl::Status status = CheckDecodeOptions(options.decode); !status.ok()) return status;
  if (options.decode.page_tokens % cpu::kLanes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size must be a multiple of ", cpu::kLanes, ", not ", options.decode.page_tokens));
  }
  if (options.threads < 1 || options.threads > 256) {
    return absl::InvalidArgumentError(absl::StrCat("cpu_threads must be in 1..256, not ", options.threads));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const cpu::Weights>> LoadCpuWeights(const std::string& directory,
                                                                   cpu::Storage storage) {
  auto model = LoadModel(directory);
  if (!model.ok()) return model.status();
  return std::shared_ptr<const cpu::Weights>(cpu::Weights::Make(*std::move(model), storage));
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCpuEngine(const CpuOptions& options,
                                                            std::shared_ptr<const cpu::Weights> weights) {
  auto backend = CpuBackend::Create(options, std::move(weights));
  if (!backend.ok()) return backend.status();
  return DecodeEngine::Create(options.decode, *std::move(backend));
}

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const CpuOptions& options,
                                                               std::shared_ptr<const cpu::Weights> weights) {
  if (absl::Status status = CheckCpuOptions(options); !status.ok()) return status;
  auto cache = cpu::KvCache::Create(ShapeOf(options, weights->config()));
  if (!cache.ok()) return cache.status();
  return std::unique_ptr<CpuBackend>(new CpuBackend(options, std::move(weights), *std::move(cache)));
}

CpuBackend::CpuBackend(const CpuOptions& options, std::shared_ptr<const cpu::Weights> weights,
                       std::unique_ptr<cpu::KvCache> cache)
    : forward_(std::move(weights), std::move(cache),
               options.kernels != nullptr ? *options.kernels : cpu::BestKernels(), options.threads,
               MaxRows(options.decode.limits.slots, options.decode.step_tokens), options.decode.limits.slots),
      samplers_(static_cast<size_t>(options.threads)),
      statuses_(static_cast<size_t>(options.threads)) {
  const ModelConfig& config = forward_.weights().config();
  facts_.vocab = config.vocab;
  facts_.max_positions = config.max_positions;
  facts_.eos_token_ids.assign(config.eos_token_ids.begin(), config.eos_token_ids.end());
}

absl::Status CpuBackend::Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  const absl::Span<const float> logits = forward_.Run(plan);
  cpu::Threads& threads = forward_.threads();
  const auto vocab = static_cast<size_t>(facts_.vocab);
  threads.Run([&](int32_t thread) {
    statuses_[thread] = absl::OkStatus();
    const auto [begin, end] = cpu::Share(plan.draws(), thread, threads.count());
    for (int64_t i = begin; i < end; ++i) {
      auto picked = samplers_[thread].Pick(logits.subspan(i * vocab, vocab), draws[i]);
      if (picked.ok()) {
        drawn[i] = *picked;
      } else {
        statuses_[thread] = picked.status();
      }
    }
  });
  for (const absl::Status& status : statuses_) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace bfio::worker
