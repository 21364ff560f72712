// What the ranks of a group must have in common to share an MLP out (--mlp=tp), in a number.
//
// Purpose: finds out ranks with another model. Of the model's shapes and of some of its weights, which come
// back from the device. Threads: as DeviceOps.
#ifndef BFIO_WORKER_ENGINE_CUDA_MODEL_SIGNATURE_H_
#define BFIO_WORKER_ENGINE_CUDA_MODEL_SIGNATURE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/model/model_config.h"

namespace bfio::worker::gpu {

// Errors: the device's. Waits. REQUIRES: the weights are all of the model.
absl::StatusOr<uint64_t> SignatureOf(const ModelConfig& config, const DeviceWeights& weights, DeviceOps& ops);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_MODEL_SIGNATURE_H_
