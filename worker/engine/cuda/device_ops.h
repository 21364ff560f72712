// The device interface of the CUDA engine: memory, copies, matrix products, replayed work. Separates the
// engine's logic from CUDA, so that all of the engine but one file runs in tests without a GPU, with the same
// kernels. Everything is queued in one stream and runs in order; only Wait waits. Threads: used by one
// thread. Errors: UNAVAILABLE with the failed call's name; RESOURCE_EXHAUSTED when memory is short;
// DEADLINE_EXCEEDED from Wait. After any error except RESOURCE_EXHAUSTED the device must not be used again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/engine/cuda/kernels/attention.h"
#include "worker/engine/cuda/kernels/device_types.h"

namespace bfio::worker::gpu {

inline constexpr double kGiB = 1 << 30;

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// Shape of a product y[rows, outputs] = x[rows, inputs] weight[outputs, inputs]^T, all row-major and aligned
// to 256 bytes. x and weight are bf16, sums fp32, y bf16 or fp32.
struct GemmShape {
  int32_t rows = 0;
  int32_t inputs = 0;
  int32_t outputs = 0;
  bool fp32_out = false;

  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

class DeviceOps {
 public:
  virtual ~DeviceOps() = default;

  // Name and size, for the log.
  virtual std::string Describe() const = 0;
  // The grid with which attention fills the device.
  virtual absl::StatusOr<AttentionGrid> FullAttentionGrid(int32_t head_dim) = 0;
  // The stream in which kernels are launched.
  virtual Stream stream() const = 0;

  virtual absl::StatusOr<DeviceMemory> Memory() = 0;
  // Device memory, freed with this object; aligned to 256 bytes, content undefined. `what` names it in
  // errors.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) = 0;
  // Pinned host memory, for asynchronous copies.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes, absl::string_view what) = 0;

  // Queues a copy; the pinned memory must not change until Wait.
  virtual absl::Status CopyIn(void* device, const void* pinned, int64_t bytes) = 0;
  virtual absl::Status CopyOut(void* pinned, const void* device, int64_t bytes) = 0;
  virtual absl::Status FillZero(void* device, int64_t bytes) = 0;

  // Chooses the algorithm for products of this shape by timing candidates on `weights`, each of which fits
  // the shape; waits for the device. `x` and `y` are large enough for the shape; y is overwritten. Must be
  // called before Multiply; a second call for the same shape does nothing.
  virtual absl::Status Prepare(const GemmShape& shape, absl::Span<const Bf16* const> weights, const Bf16* x,
                               void* y) = 0;
  virtual absl::Status Multiply(const GemmShape& shape, const Bf16* x, const Bf16* weight, void* y) = 0;

  // Records what `work` queues instead of running it; `work` may call Multiply and launch kernels on
  // stream(). Replay queues all of it again with the same arguments. Returns the record's number.
  virtual absl::StatusOr<int> Record(std::function<absl::Status()> work) = 0;
  virtual absl::Status Replay(int record) = 0;

  // Waits until all queued work is done.
  virtual absl::Status Wait(absl::Duration deadline) = 0;
  // Runs a record and returns its time on the device in seconds; for benchmarks.
  virtual absl::StatusOr<double> Time(int record) = 0;
};

// OK for null, otherwise UNAVAILABLE with the kernel's name. `error`: what a launch returned.
absl::Status LaunchStatus(const char* error, absl::string_view kernel);

}  // namespace bfio::worker::gpu
