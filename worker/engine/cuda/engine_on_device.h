// Assembles a whole engine on one device: weights, as many KV tokens as fit, backend.
//
// Purpose: the code that a program runs at start, so that tests can run it with the emulated device. Threads:
// as in engine.h.
#ifndef BFIO_WORKER_ENGINE_CUDA_ENGINE_ON_DEVICE_H_
#define BFIO_WORKER_ENGINE_CUDA_ENGINE_ON_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::gpu {

// `fit_kv`: options.limits.kv_tokens is an upper bound, lowered to what fits in the device's memory; the
// engine's limits() give the result. Errors: those of CudaBackend::Check, UploadWeights and
// CudaBackend::Create.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeEngineOn(std::unique_ptr<DeviceOps> ops,
                                                           const DecodeOptions& options, bool fit_kv,
                                                           const Model& model, const Progress& progress);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_ENGINE_ON_DEVICE_H_
