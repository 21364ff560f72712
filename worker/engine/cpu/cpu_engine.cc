#include "worker/engine/cpu/cpu_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/cpu/part_memory.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {
namespace {

cpu::KvShape ShapeOf(const CpuOptions& options, const ModelConfig& config, const BlockRange& blocks) {
  return cpu::PartShape(config, blocks.count, options.decode.page_tokens,
                        PageTable::PageLimit(PageTableOptionsOf(options.decode)));
}

// The types in which weights.h stores the matrices. Settings with the same result have the same text.
absl::string_view WeightTypes(cpu::Storage storage, const Model& model) {
  if (storage != cpu::Storage::kAuto) return storage == cpu::Storage::kBf16 ? "bf16" : "fp32";
  int64_t matrices = 0, halves = 0;
  const auto count = [&](const TensorView& matrix) {
    ++matrices;
    halves += matrix.dtype == DType::kBF16 ? 1 : 0;
  };
  count(model.embedding());
  count(model.lm_head());
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      count(*matrix);
    }
  }
  if (halves == matrices) return "bf16";
  return halves == 0 ? "fp32" : "as in the files";
}

}  // namespace

absl::Status CheckCpuOptions(const CpuOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckDecodeOptions(options.decode));
  if (options.decode.page_tokens % cpu::kLanes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size must be a multiple of ", cpu::kLanes, ", not ", options.decode.page_tokens));
  }
  if (options.threads < 1 || options.threads > 256) {
    return absl::InvalidArgumentError(absl::StrCat("cpu_threads must be in 1..256, not ", options.threads));
  }
  return absl::OkStatus();
}

ModelDigest DigestOf(cpu::Storage weights, const Model& model) {
  return model.digest().With(absl::StrCat("cpu, weights ", WeightTypes(weights, model)));
}

ModelFacts FactsOf(const ModelConfig& config) {
  ModelFacts facts;
  facts.vocab = config.vocab;
  facts.max_positions = config.max_positions;
  facts.eos_token_ids.assign(config.eos_token_ids.begin(), config.eos_token_ids.end());
  return facts;
}

absl::StatusOr<std::shared_ptr<const cpu::Weights>> LoadCpuWeights(const std::string& directory,
                                                                   cpu::Storage storage) {
  BFIO_ASSIGN_OR_RETURN(auto model, LoadModel(directory));
  return std::shared_ptr<const cpu::Weights>(cpu::Weights::Make(std::move(model), storage));
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCpuEngine(const CpuOptions& options,
                                                            std::shared_ptr<const cpu::Weights> weights) {
  BFIO_ASSIGN_OR_RETURN(auto backend, CpuBackend::Create(options, std::move(weights)));
  return DecodeEngine::Create(options.decode, std::move(backend));
}

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const CpuOptions& options,
                                                               std::shared_ptr<const cpu::Weights> weights) {
  const BlockRange all = weights->part().blocks;
  return Create(options, std::move(weights), all);
}

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const CpuOptions& options,
                                                               std::shared_ptr<const cpu::Weights> weights,
                                                               const BlockRange& blocks) {
  BFIO_RETURN_IF_ERROR(CheckCpuOptions(options));
  BFIO_ASSIGN_OR_RETURN(auto cache, cpu::KvCache::Create(ShapeOf(options, weights->config(), blocks)));
  return std::unique_ptr<CpuBackend>(new CpuBackend(options, std::move(weights), blocks, std::move(cache)));
}

CpuBackend::CpuBackend(const CpuOptions& options, std::shared_ptr<const cpu::Weights> weights,
                       const BlockRange& blocks, std::unique_ptr<cpu::KvCache> cache)
    : forward_(std::move(weights), blocks, std::move(cache),
               options.kernels != nullptr ? *options.kernels : cpu::BestKernels(), options.threads,
               MaxRows(options.decode.limits.slots, options.decode.step_tokens), options.decode.limits.slots),
      samplers_(options.threads) {
  facts_ = FactsOf(forward_.weights().config());
}

absl::Status CpuBackend::Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  samplers_.Run(forward_.threads(), forward_.Run(plan), draws, drawn);
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> CpuBackend::RunHead(const StepPlan& plan) {
  return forward_.RunHead(plan);
}

absl::StatusOr<absl::Span<const float>> CpuBackend::RunBlocks(const StepPlan& plan,
                                                              absl::Span<const float> hidden) {
  return forward_.RunBlocks(plan, hidden);
}

absl::Status CpuBackend::DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                                  absl::Span<Drawn> drawn) {
  samplers_.Run(forward_.threads(), forward_.Logits(hidden), draws, drawn);
  return absl::OkStatus();
}

CpuParts::CpuParts(std::shared_ptr<const Model> model, cpu::Storage weights, const CpuOptions& options)
    : model_(std::move(model)),
      storage_(weights),
      options_(options),
      bytes_(cpu::BytesOf(*model_, storage_)) {}

absl::StatusOr<std::unique_ptr<PartBackend>> CpuParts::Make(const DecodeOptions& options,
                                                            const ModelPart& hosted,
                                                            const BlockRange& blocks) {
  CpuOptions cpu = options_;
  cpu.decode = options;
  std::shared_ptr<const cpu::Weights> weights = weights_.lock();
  if (weights == nullptr || weights->part() != hosted) {
    weights = cpu::Weights::Make(model_, storage_, hosted);
    weights_ = weights;
  }
  return CpuBackend::Create(cpu, std::move(weights), blocks);
}

}  // namespace bfio::worker
