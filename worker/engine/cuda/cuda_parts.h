// The parts of chains on a server with a GPU (part_backend.h). The hosted blocks are uploaded once, to memory
// of their own, and shared by the parts that exist at the same time. Each part has its own stream,
// activations and KV pools on the same device, so that parts run concurrently. Threads: used by one thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/part_backend.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::gpu {

// A whole engine on one device: weights, as many KV tokens as fit, backend. Also for the emulated device.
// `fit_kv`: options.limits.kv_tokens is an upper bound, lowered to what fits in the device's memory; the
// engine's limits() give the result. Errors: those of CudaBackend::Check, UploadWeights and
// CudaBackend::Create.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeEngineOn(std::unique_ptr<DeviceOps> ops,
                                                           const DecodeOptions& options, bool fit_kv,
                                                           const Model& model, const Progress& progress);

// Opens another DeviceOps on the server's device.
using OpenDevice = std::function<absl::StatusOr<std::unique_ptr<DeviceOps>>()>;

class CudaParts final : public PartSource {
 public:
  CudaParts(std::shared_ptr<const Model> model, OpenDevice open, Progress progress);

  const ModelBytes& bytes() const override { return bytes_; }
  absl::StatusOr<std::unique_ptr<PartBackend>> Make(const DecodeOptions& options, const ModelPart& hosted,
                                                    const BlockRange& blocks) override;

 private:
  // The weights of `hosted`; uploads them if no part has them.
  absl::StatusOr<DeviceWeights> Hosted(const DecodeOptions& options, const ModelPart& hosted);

  const std::shared_ptr<const Model> model_;
  const OpenDevice open_;
  const Progress progress_;
  const ModelBytes bytes_;
  // Weights of `hosted_`, valid as long as a part keeps the memory.
  DeviceWeights weights_;
  std::weak_ptr<DeviceOps> memory_;
  ModelPart hosted_;
};

}  // namespace bfio::worker::gpu
