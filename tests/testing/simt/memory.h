// Device memory of the emulator: buffers whose bounds are checked.
//
// Purpose: a DeviceBuffer ends (to 16 bytes) where a protected page begins and starts after another, so that
// access beyond it is detected at once; the few bytes between page and buffer are checked after each launch.
// It is filled with poison at first (machine.h). Threads: as machine.h.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace simt {

// The untyped base of DeviceBuffer.
class GuardedMemory {
 public:
  // `name` appears in messages.
  GuardedMemory(std::string name, size_t bytes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  bool Contains(const void* p, size_t bytes) const;
  // Whether p is in the buffer or in the pages and slack around it.
  bool Owns(const void* p) const;
  // False when the slack was written.
  bool SlackIntact() const;

  // The buffer that contains, or that owns, p; nullptr when none does.
  static const GuardedMemory* FindContaining(const void* p, size_t bytes);
  static const GuardedMemory* FindOwner(const void* p);
  // The first buffer with damaged slack, or nullptr.
  static const GuardedMemory* FindDamaged();

 private:
  std::string name_;
  size_t bytes_;
  unsigned char* mapping_;
  size_t mapped_bytes_;
  unsigned char* data_;
};

template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 16);

 public:
  DeviceBuffer(std::string name, size_t size) : memory_(std::move(name), size * sizeof(T)), size_(size) {}
  DeviceBuffer(std::string name, const std::vector<T>& content)
      : DeviceBuffer(std::move(name), content.size()) {
    std::copy(content.begin(), content.end(), data());
  }

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data()[i]; }
  std::vector<T> Content() const { return std::vector<T>(data(), data() + size_); }

 private:
  GuardedMemory memory_;
  size_t size_;
};

}  // namespace simt
