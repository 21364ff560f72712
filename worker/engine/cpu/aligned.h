// Float arrays that begin at a cache line.
//
// Purpose: a vector of the kernels is 64 bytes. Loaded from the middle of a cache line it takes two accesses,
// which was measured to cost matrix products of many rows much of their speed. Threads: as std::vector.
#ifndef BFIO_WORKER_ENGINE_CPU_ALIGNED_H_
#define BFIO_WORKER_ENGINE_CPU_ALIGNED_H_

#include <cstddef>
#include <new>
#include <vector>

namespace bfio::worker::cpu {

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kAlignment); }
  template <typename U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_ALIGNED_H_
