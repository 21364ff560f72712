// The CUDA engine: a Llama-family model, decoded on a GPU.
//
// Purpose: how device, weights and backend are put together. In a build without CUDA the same functions are
// there and say so. Threads: as engine.h says.
#ifndef BFIO_WORKER_ENGINE_CUDA_DEVICE_CUDA_ENGINE_H_
#define BFIO_WORKER_ENGINE_CUDA_DEVICE_CUDA_ENGINE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/part_backend.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {

struct CudaOptions {
  // Pages of 16, 32 or 64 tokens.
  DecodeOptions decode;
  // Of the machine's GPUs.
  int32_t device = 0;
  // decode.limits.kv_tokens are the most: where the GPU's memory is short it is as many as fit.
  bool fit_kv = false;
};

// FAILED_PRECONDITION: built without CUDA; UNAVAILABLE: no such GPU on this machine, too old a one, or no
// driver.
absl::Status CheckCudaDevice(int32_t device);

// Loads cuBLASLt, brings the weights to the GPU, chooses matrix products and records the steps: seconds to
// minutes, reported to `progress`. Errors: CheckCudaDevice's; INVALID_ARGUMENT: an option, or a model that
// the kernels do not have; RESOURCE_EXHAUSTED, with sizes: no memory.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCudaEngine(
    const CudaOptions& options, const Model& model, const std::function<void(const std::string&)>& progress);

// For servers of chains: parts on this device. Errors: CheckCudaDevice's; those of parts are
// MakeCudaEngine's.
absl::StatusOr<std::unique_ptr<PartSource>> MakeCudaParts(int32_t device, std::shared_ptr<const Model> model,
                                                          std::function<void(const std::string&)> progress);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_CUDA_DEVICE_CUDA_ENGINE_H_
