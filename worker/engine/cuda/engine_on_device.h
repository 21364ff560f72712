// A whole engine on one device: weights, as many KV tokens as fit, backend.
//
// Purpose: what a program's start does with a device, so that tests do it with the emulated one. Threads: as
// engine.h says.
#ifndef BFIO_WORKER_ENGINE_CUDA_ENGINE_ON_DEVICE_H_
#define BFIO_WORKER_ENGINE_CUDA_ENGINE_ON_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::gpu {

// `fit_kv`: options.limits.kv_tokens are the most; where the device has no memory for so many they are as
// many as fit, which the engine's limits() tell. Errors: those of CudaBackend::Check, UploadWeights and
// CudaBackend::Create.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeEngineOn(std::unique_ptr<DeviceOps> ops,
                                                           const DecodeOptions& options, bool fit_kv,
                                                           const Model& model, const Progress& progress);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_ENGINE_ON_DEVICE_H_
