// The CUDA engine of a build without CUDA.
#include "worker/engine/cuda/device/cuda_engine.h"

namespace bfio::worker {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA (configure with -DBFIO_WITH_CUDA=ON)");
}

}  // namespace

absl::Status CheckCudaDevice(int32_t) {
  return NotBuilt();
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCudaEngine(const CudaOptions&, const Model&,
                                                             const std::function<void(const std::string&)>&) {
  return NotBuilt();
}

absl::StatusOr<std::unique_ptr<PartSource>> MakeCudaParts(int32_t, std::shared_ptr<const Model>,
                                                          std::function<void(const std::string&)>) {
  return NotBuilt();
}

}  // namespace bfio::worker
