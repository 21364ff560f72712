// The CUDA engine: runs a Llama-family model on a GPU. Assembles device, weights and backend. A build without
// CUDA has the same functions, which return an error. Threads: as in engine.h.
#pragma once

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
  // Index among the machine's GPUs.
  int32_t device = 0;
  // True: decode.limits.kv_tokens is an upper bound, lowered to what fits in the GPU's memory.
  bool fit_kv = false;
};

// FAILED_PRECONDITION: built without CUDA; UNAVAILABLE: no such GPU on this machine, a GPU that is too old,
// or no driver.
absl::Status CheckCudaDevice(int32_t device);

// Loads cuBLASLt, copies the weights to the GPU, chooses matrix products and records the steps. Takes seconds
// to minutes, reported to `progress`. Errors: those of CheckCudaDevice; INVALID_ARGUMENT: an option or model
// that the kernels do not support; RESOURCE_EXHAUSTED, with sizes: not enough memory.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCudaEngine(
    const CudaOptions& options, const Model& model, const std::function<void(const std::string&)>& progress);

// For servers of chains: makes parts on this device. Errors: those of CheckCudaDevice; errors of parts are
// those of MakeCudaEngine.
absl::StatusOr<std::unique_ptr<PartSource>> MakeCudaParts(int32_t device, std::shared_ptr<const Model> model,
                                                          std::function<void(const std::string&)> progress);

}  // namespace bfio::worker
