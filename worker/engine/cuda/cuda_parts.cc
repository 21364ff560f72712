#include "worker/engine/cuda/cuda_parts.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/cuda_backend.h"

namespace bfio::worker::gpu {

CudaParts::CudaParts(std::shared_ptr<const Model> model, OpenDevice open, Progress progress)
    : model_(std::move(model)),
      open_(std::move(open)),
      progress_(std::move(progress)),
      bytes_(BytesOf(model_->config())) {}

absl::StatusOr<DeviceWeights> CudaParts::Hosted(const DecodeOptions& options, const ModelPart& hosted) {
  std::shared_ptr<DeviceOps> memory = memory_.lock();
  if (memory == nullptr || hosted_ != hosted) {
    BFIO_ASSIGN_OR_RETURN(auto opened, open_());
    BFIO_RETURN_IF_ERROR(CudaBackend::Check(options, model_->config(), *opened));
    BFIO_ASSIGN_OR_RETURN(auto weights, UploadWeights(*model_, hosted, *opened, progress_));
    memory = std::move(opened);
    weights_ = std::move(weights);
    memory_ = memory;
    hosted_ = hosted;
  }
  DeviceWeights weights = weights_;
  weights.memory = std::move(memory);
  return weights;
}

absl::StatusOr<std::unique_ptr<PartBackend>> CudaParts::Make(const DecodeOptions& options,
                                                             const ModelPart& hosted,
                                                             const BlockRange& blocks) {
  BFIO_ASSIGN_OR_RETURN(auto weights, Hosted(options, hosted));
  const auto first = weights.layers.begin() + (blocks.first - hosted.blocks.first);
  weights.layers = std::vector<DeviceLayer>(first, first + blocks.count);
  // Only the part that begins a chain needs the embedding, even if another part here has it.
  if (blocks.first != 0) weights.embedding = weights.lm_head = weights.final_norm = nullptr;
  BFIO_ASSIGN_OR_RETURN(auto ops, open_());
  return CudaBackend::Create(options, model_->config(), std::move(ops), std::move(weights), progress_);
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeEngineOn(std::unique_ptr<DeviceOps> ops,
                                                           const DecodeOptions& options, bool fit_kv,
                                                           const Model& model, const Progress& progress) {
  BFIO_RETURN_IF_ERROR(CudaBackend::Check(options, model.config(), *ops));
  BFIO_ASSIGN_OR_RETURN(auto weights, UploadWeights(model, *ops, progress));
  BFIO_ASSIGN_OR_RETURN(const auto kv_tokens,
                        CudaBackend::FitKv(options, model.config(), weights, *ops, fit_kv));
  if (kv_tokens < options.limits.kv_tokens) {
    progress(absl::StrFormat("KV capacity is --kv_tokens=%d, the most that fits into the memory of %s",
                             kv_tokens, ops->Describe()));
  }
  DecodeOptions fitted = options;
  fitted.limits.kv_tokens = kv_tokens;
  BFIO_ASSIGN_OR_RETURN(auto backend, CudaBackend::Create(fitted, model.config(), std::move(ops),
                                                          std::move(weights), progress));
  return DecodeEngine::Create(fitted, std::move(backend));
}

}  // namespace bfio::worker::gpu
