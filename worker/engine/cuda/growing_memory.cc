#include "worker/engine/cuda/growing_memory.h"

#include <utility>

#include "common/base/status_macros.h"

namespace bfio::worker::gpu {

absl::Status GrowingMemory::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  BFIO_RETURN_IF_ERROR(Free());
  BFIO_ASSIGN_OR_RETURN(
      data_, kind_ == Kind::kDevice ? ops_.Allocate(bytes, what_) : ops_.AllocatePinned(bytes, what_));
  bytes_ = bytes;
  return kind_ == Kind::kDevice ? ops_.FillZero(data_, bytes) : absl::OkStatus();
}

absl::Status GrowingMemory::Free() {
  bytes_ = 0;
  void* const memory = std::exchange(data_, nullptr);
  return memory != nullptr ? ops_.Release(memory) : absl::OkStatus();
}

}  // namespace bfio::worker::gpu
