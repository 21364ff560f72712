// Memory that is replaced by a larger block when a group needs more.
//
// Purpose: for buffers whose size depends on the group and its batches, which are not known when an engine is
// made. The content is lost when it grows. Threads: as DeviceOps.
#ifndef BFIO_WORKER_ENGINE_CUDA_GROWING_MEMORY_H_
#define BFIO_WORKER_ENGINE_CUDA_GROWING_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/engine/cuda/device_ops.h"

namespace bfio::worker::gpu {

class GrowingMemory {
 public:
  enum class Kind { kDevice, kPinned };
  // The memory is freed with `ops`. `what` is a literal that names it in errors.
  GrowingMemory(DeviceOps& ops, Kind kind, absl::string_view what) : ops_(ops), kind_(kind), what_(what) {}

  // Ensures at least `bytes` bytes; new device memory is zeroed. RESOURCE_EXHAUSTED: not enough memory.
  // REQUIRES: no work is queued when it must grow.
  absl::Status Reserve(int64_t bytes);
  // REQUIRES: no work is queued.
  absl::Status Free();

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  DeviceOps& ops_;
  const Kind kind_;
  const absl::string_view what_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_GROWING_MEMORY_H_
