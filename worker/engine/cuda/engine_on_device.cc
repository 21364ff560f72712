#include "worker/engine/cuda/engine_on_device.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/return_if_error.h"
#include "worker/engine/cuda/cuda_backend.h"

namespace bfio::worker::gpu {

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeEngineOn(std::unique_ptr<DeviceOps> ops,
                                                           const DecodeOptions& options, bool fit_kv,
                                                           const Model& model, const Progress& progress) {
  BFIO_RETURN_IF_ERROR(CudaBackend::Check(options, model.config(), *ops));
  auto weights = UploadWeights(model, *ops, progress);
  if (!weights.ok()) return weights.status();
  const auto kv_tokens = CudaBackend::FitKv(options, model.config(), *weights, *ops, fit_kv);
  if (!kv_tokens.ok()) return kv_tokens.status();
  if (*kv_tokens < options.limits.kv_tokens) {
    progress(absl::StrFormat("--kv_tokens=%d: what fits into the memory of %s", *kv_tokens, ops->Describe()));
  }
  DecodeOptions fitted = options;
  fitted.limits.kv_tokens = *kv_tokens;
  auto backend = CudaBackend::Create(fitted, model.config(), std::move(ops), *std::move(weights), progress);
  if (!backend.ok()) return backend.status();
  return DecodeEngine::Create(fitted, *std::move(backend));
}

}  // namespace bfio::worker::gpu
