#include "worker/engine/cuda/device/cuda_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/cuda_parts.h"
#include "worker/engine/cuda/device/cuda_device_ops.h"

namespace bfio::worker {

absl::Status CheckCudaDevice(int32_t device) {
  BFIO_ASSIGN_OR_RETURN(const auto count, gpu::CudaDevices());
  if (device >= 0 && device < count) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no CUDA device ", device, "; the number of devices is ", count));
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCudaEngine(
    const CudaOptions& options, const Model& model, const std::function<void(const std::string&)>& progress) {
  BFIO_ASSIGN_OR_RETURN(auto ops, gpu::CudaDeviceOps::Create(options.device));
  return gpu::MakeEngineOn(std::move(ops), options.decode, options.fit_kv, model, progress);
}

absl::StatusOr<std::unique_ptr<PartSource>> MakeCudaParts(int32_t device, std::shared_ptr<const Model> model,
                                                          std::function<void(const std::string&)> progress) {
  BFIO_RETURN_IF_ERROR(CheckCudaDevice(device));
  const auto open = [device]() -> absl::StatusOr<std::unique_ptr<gpu::DeviceOps>> {
    return gpu::CudaDeviceOps::Create(device);
  };
  return std::make_unique<gpu::CudaParts>(std::move(model), open, std::move(progress));
}

}  // namespace bfio::worker
