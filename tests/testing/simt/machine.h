// An emulator of a GPU's thread blocks, for testing kernels without a GPU.
//
// Purpose: runs a grid block by block. Every thread of a block is a fiber, which runs until it must wait for
// others: at a block barrier, or in an operation of its warp. Undefined behaviour on a GPU ends the launch
// with a message:
// - threads that wait at different barriers, or wait for one that has exited; the same within a warp;
// - vector access, ldmatrix or an async copy that is misaligned or outside of shared memory or any
//   DeviceBuffer;
// - plain access past a DeviceBuffer's end, plain writes before its start or past a shared array's end;
// - an async copy without a wait when its thread exits.
// Memory that is read too early is poison, which is NaN as fp32, bf16 and fp16: shared memory when a block
// starts, and the target of an async copy from its issue until its thread waits for it. Order::kReverse runs
// warps and lanes last to first: a missing barrier is detected in one of the two orders.
//
// Not emulated: timing, bank conflicts, memory order, concurrent blocks, the last bits of approximate
// functions and of the tensor cores' sums.
//
// Threads: one thread at a time uses the emulator; kernels run on it.
#pragma once

#include <cstddef>
#include <functional>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

namespace simt {

// Device memory of the emulator: buffers whose bounds are checked.
//
// Purpose: a DeviceBuffer ends (to 16 bytes) where a protected page begins and starts after another, so that
// access beyond it is detected at once; the few bytes between page and buffer are checked after each launch.
// It is filled with poison at first (machine.h). Threads: as machine.h.

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

// Byte that fills poisoned memory.
inline constexpr unsigned char kPoison = 0xff;
inline constexpr int kWarpLanes = 32;
// Shared memory that a multiprocessor of sm_90 gives to a block.
inline constexpr int kMaxSharedBytes = 227 * 1024;

enum class Order { kForward, kReverse };

// The order for launches from now on; kForward at first.
void SetOrder(Order order);

struct Grid {
  int blocks_x = 1;
  int blocks_y = 1;
  // A multiple of 32, at most 1024.
  int threads = kWarpLanes;
  int shared_bytes = 0;
};

// Runs `kernel` in every thread of the grid. Returns empty, or the first error; then the rest has not been
// run.
std::string Run(const Grid& grid, const std::function<void()>& kernel);

// --- Within a kernel ---

using Where = std::source_location;

struct Place {
  int thread = 0;
  int block_x = 0;
  int block_y = 0;
};
const Place& Here();
const Grid& CurrentGrid();

void BlockBarrier(const Where& where);
// When all lanes of the warp have called it, `operation` is called once with their arguments by lane.
void WarpCollective(const char* name, void (*operation)(void* const* arguments), void* argument,
                    const Where& where);

// Dynamic shared memory, and the static array that belongs to `key`.
unsigned char* DynamicShared();
void* StaticShared(const void* key, size_t bytes, size_t alignment);

void CopyAsync(void* shared, const void* global, size_t bytes, bool valid);
void CommitAsync();
void WaitAsync(int newest);

// Ends the launch unless [p, p + bytes) is aligned and lies in shared memory (CheckShared), or in shared
// memory or a DeviceBuffer (CheckAccess).
void CheckShared(const char* what, const void* p, size_t bytes);
void CheckAccess(const char* what, const void* p, size_t bytes);

// Ends the launch with this message. REQUIRES: called within a kernel.
[[noreturn]] void Fail(const char* message);

}  // namespace simt
