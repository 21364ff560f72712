// The shared memory of the running block.
//
// Purpose: dynamic memory first, then static arrays in the order of first use, each followed by bytes that no
// thread may write. All of it is filled with poison when a block begins (machine.h). Threads: as machine.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "simt/machine.h"

namespace simt {

class SharedMemory {
 public:
  SharedMemory();

  // Begins another block, with this much dynamic memory. REQUIRES: dynamic_bytes <= kMaxSharedBytes.
  void Begin(size_t dynamic_bytes);

  unsigned char* dynamic() { return bytes_; }
  // The array that belongs to `key`; nullptr when it does not fit.
  void* StaticArray(const void* key, size_t bytes, size_t alignment);
  bool Contains(const void* p, size_t bytes) const;
  // Describes a write to forbidden bytes; nullptr: none.
  const char* Damage() const;

 private:
  static constexpr size_t kAlignment = 1024;
  static constexpr size_t kMaxStaticBytes = 48 * 1024;
  // Forbidden bytes after each array.
  static constexpr size_t kCanaryBytes = 64;
  static constexpr unsigned char kCanary = 0x5a;

  struct Array {
    // Null: dynamic memory.
    const void* key;
    size_t offset;
    size_t bytes;
  };

  void Add(const void* key, size_t offset, size_t bytes);

  std::vector<unsigned char> storage_;
  // Within storage_, aligned to 1024.
  unsigned char* bytes_;
  size_t size_;
  std::vector<Array> arrays_;
  size_t used_ = 0;
};

inline SharedMemory::SharedMemory()
    : storage_(kMaxSharedBytes + kMaxStaticBytes + 2 * kAlignment),
      size_(kMaxSharedBytes + kMaxStaticBytes + kAlignment) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  bytes_ = storage_.data() + (kAlignment - address % kAlignment) % kAlignment;
}

inline void SharedMemory::Begin(size_t dynamic_bytes) {
  arrays_.clear();
  Add(nullptr, 0, dynamic_bytes);
}

inline void SharedMemory::Add(const void* key, size_t offset, size_t bytes) {
  std::memset(bytes_ + offset, kPoison, bytes);
  std::memset(bytes_ + offset + bytes, kCanary, kCanaryBytes);
  arrays_.push_back({key, offset, bytes});
  used_ = offset + bytes + kCanaryBytes;
}

inline void* SharedMemory::StaticArray(const void* key, size_t bytes, size_t alignment) {
  for (const Array& array : arrays_) {
    if (array.key == key) return bytes_ + array.offset;
  }
  const size_t offset = (used_ + alignment - 1) / alignment * alignment;
  if (offset + bytes + kCanaryBytes > size_) return nullptr;
  Add(key, offset, bytes);
  return bytes_ + offset;
}

inline bool SharedMemory::Contains(const void* p, size_t bytes) const {
  const auto* from = static_cast<const unsigned char*>(p);
  return std::any_of(arrays_.begin(), arrays_.end(), [&](const Array& array) {
    const unsigned char* start = bytes_ + array.offset;
    return reinterpret_cast<uintptr_t>(from) >= reinterpret_cast<uintptr_t>(start) &&
           reinterpret_cast<uintptr_t>(from) + bytes <= reinterpret_cast<uintptr_t>(start) + array.bytes;
  });
}

inline const char* SharedMemory::Damage() const {
  for (const Array& array : arrays_) {
    const unsigned char* canary = bytes_ + array.offset + array.bytes;
    if (std::all_of(canary, canary + kCanaryBytes, [](unsigned char c) { return c == kCanary; })) continue;
    return array.key == nullptr ? "a write past the end of dynamic shared memory"
                                : "a write past the end of a shared array";
  }
  return nullptr;
}

}  // namespace simt
