// The device that the CUDA engine computes on: a GPU. Compiled with CUDA 13.0; docs/results.md lists the
// runs on GPUs. Implements DeviceOps with the CUDA runtime (linked statically) and cuBLASLt (loaded).
// Threads: used by one thread at a time, which may change: each call makes the GPU the thread's current one.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/engine/cuda/device/gemms.h"
#include "worker/engine/cuda/device_ops.h"

namespace bfio::worker::gpu {

// Number of GPUs of this machine. UNAVAILABLE when there is none, or no driver.
absl::StatusOr<int> CudaDevices();

class CudaDeviceOps final : public DeviceOps {
 public:
  // UNAVAILABLE: no such GPU, a GPU older than sm_80, or no cuBLASLt.
  static absl::StatusOr<std::unique_ptr<CudaDeviceOps>> Create(int device);
  // Waits for queued work for a bounded time; memory of work that still runs then is leaked.
  ~CudaDeviceOps() override;

  std::string Describe() const override { return name_; }
  absl::StatusOr<AttentionGrid> FullAttentionGrid(int32_t head_dim) override;
  Stream stream() const override { return stream_; }
  absl::StatusOr<DeviceMemory> Memory() override;
  absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) override;
  absl::StatusOr<void*> AllocatePinned(int64_t bytes, absl::string_view what) override;
  absl::Status CopyIn(void* device, const void* pinned, int64_t bytes) override;
  absl::Status CopyOut(void* pinned, const void* device, int64_t bytes) override;
  absl::Status FillZero(void* device, int64_t bytes) override;
  absl::Status Prepare(const GemmShape& shape, absl::Span<const Bf16* const> weights, const Bf16* x,
                       void* y) override;
  absl::Status Multiply(const GemmShape& shape, const Bf16* x, const Bf16* weight, void* y) override;
  absl::StatusOr<int> Record(std::function<absl::Status()> work) override;
  absl::Status Replay(int record) override;
  absl::Status Wait(absl::Duration deadline) override;
  absl::StatusOr<double> Time(int record) override;

 private:
  explicit CudaDeviceOps(int device) : device_(device) {}

  absl::Status Open();
  // Makes the GPU this thread's current one.
  absl::Status Enter() const;

  const int device_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr, begin_ = nullptr, end_ = nullptr;
  std::unique_ptr<Gemms> gemms_;
  std::vector<void*> memory_, pinned_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace bfio::worker::gpu
