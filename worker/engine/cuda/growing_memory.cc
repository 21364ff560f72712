#include "worker/engine/cuda/growing_memory.h"

#include <utility>

namespace bfio::worker::gpu {

absl::Status GrowingMemory::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  if (absl::Status status = Free(); !status.ok()) return status;
  const auto memory =
      kind_ == Kind::kDevice ? ops_.Allocate(bytes, what_) : ops_.AllocatePinned(bytes, what_);
  if (!memory.ok()) return memory.status();
  data_ = *memory;
  bytes_ = bytes;
  return kind_ == Kind::kDevice ? ops_.FillZero(data_, bytes) : absl::OkStatus();
}

absl::Status GrowingMemory::Free() {
  bytes_ = 0;
  void* const memory = std::exchange(data_, nullptr);
  return memory != nullptr ? ops_.Release(memory) : absl::OkStatus();
}

}  // namespace bfio::worker::gpu
