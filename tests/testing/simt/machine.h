// An emulator of a GPU's thread blocks, for testing kernels where there is no GPU.
//
// Purpose: runs a grid block by block; every thread of a block is a fiber that runs until it must meet
// others: at a block barrier, or in an operation of its warp. What a GPU leaves undefined ends the launch
// with a message:
//   - threads that wait at different barriers, or wait for one that has exited; the same within a warp;
//   - vector access, ldmatrix or an async copy that is misaligned or outside of shared memory or any
//   DeviceBuffer;
//   - plain access past a DeviceBuffer's end, plain writes before its start or past a shared array's end;
//   - an async copy without a wait when its thread exits.
// What is read too early is poison, which is NaN as fp32, bf16 and fp16: shared memory when a block starts,
// and the target of an async copy from its issue until its thread waits for it. Order::kReverse runs warps
// and lanes last to first: a missing barrier shows in one of the two orders.
//
// Not emulated: timing, bank conflicts, memory order, blocks at the same time, the last bits of approximate
// functions and of the tensor cores' sums.
//
// Threads: one thread at a time uses the emulator; kernels run on it.
#ifndef BFIO_TESTS_TESTING_SIMT_MACHINE_H_
#define BFIO_TESTS_TESTING_SIMT_MACHINE_H_

#include <cstddef>
#include <functional>
#include <source_location>
#include <string>

namespace simt {

// Byte that poisoned memory is filled with.
inline constexpr unsigned char kPoison = 0xff;
inline constexpr int kWarpLanes = 32;
// A multiprocessor of sm_90 gives a block so much.
inline constexpr int kMaxSharedBytes = 227 * 1024;

enum class Order { kForward, kReverse };

// For launches from now on; kForward at first.
void SetOrder(Order order);

struct Grid {
  int blocks_x = 1;
  int blocks_y = 1;
  // A multiple of 32, at most 1024.
  int threads = kWarpLanes;
  int shared_bytes = 0;
};

// Runs `kernel` in every thread of the grid. Empty, or what went wrong first; then the rest has not been run.
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
// When all lanes of the warp have come, `operation` is called once with their arguments by lane.
void WarpMeeting(const char* name, void (*operation)(void* const* arguments), void* argument,
                 const Where& where);

// Dynamic shared memory, and the static array that belongs to `key`.
unsigned char* DynamicShared();
void* StaticShared(const void* key, size_t bytes, size_t alignment);

void CopyAsync(void* shared, const void* global, size_t bytes, bool valid);
void CommitAsync();
void WaitAsync(int newest);

// Ends the launch unless [p, p + bytes) is aligned and lies in shared memory; or in that or a DeviceBuffer.
void CheckShared(const char* what, const void* p, size_t bytes);
void CheckAccess(const char* what, const void* p, size_t bytes);

// Ends the launch with this message. REQUIRES: called within a kernel.
[[noreturn]] void Fail(const char* message);

}  // namespace simt

#endif  // BFIO_TESTS_TESTING_SIMT_MACHINE_H_
