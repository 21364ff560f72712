#include "worker/engine/cuda/engine_on_device.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/cuda_backend.h"

namespace bfio::worker::gpu {

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
