#include "worker/engine/cuda/device/cuda_device_ops.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/device/cuda_status.h"

namespace bfio::worker::gpu {
namespace {

constexpr absl::Duration kEndPatience = absl::Seconds(10);
constexpr absl::Duration kTimeDeadline = absl::Seconds(60);
constexpr int kOldestMajor = 8;

// Calls the CUDA runtime; returns from the function on an error, with the call's name.
#define BFIO_CUDA(call) BFIO_RETURN_IF_ERROR(CudaStatus(call, #call))

absl::Status Named(absl::Status status, absl::string_view what, int64_t bytes) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrFormat("cannot allocate %.1f MiB for %s: %s",
                                      static_cast<double>(bytes) / (1 << 20), what, status.message()));
}

}  // namespace

absl::StatusOr<int> CudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::UnavailableError(absl::StrCat(
        "no CUDA device: ", error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none"));
  }
  return count;
}

absl::StatusOr<std::unique_ptr<CudaDeviceOps>> CudaDeviceOps::Create(int device) {
  BFIO_ASSIGN_OR_RETURN(const auto count, CudaDevices());
  if (device < 0 || device >= count) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device ", device, "; the number of devices is ", count));
  }
  auto ops = std::unique_ptr<CudaDeviceOps>(new CudaDeviceOps(device));
  BFIO_RETURN_IF_ERROR(ops->Open());
  return ops;
}

absl::Status CudaDeviceOps::Enter() const {
  return CudaStatus(cudaSetDevice(device_), "cudaSetDevice");
}

absl::Status CudaDeviceOps::Open() {
  BFIO_RETURN_IF_ERROR(Enter());
  cudaDeviceProp properties;
  BFIO_CUDA(cudaGetDeviceProperties(&properties, device_));
  name_ = absl::StrCat("GPU ", device_, " (", properties.name, ")");
  if (properties.major < kOldestMajor) {
    return absl::UnavailableError(absl::StrCat(name_, " is sm_", properties.major, properties.minor,
                                               "; the CUDA engine needs sm_80 or newer"));
  }
  BFIO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  BFIO_CUDA(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  BFIO_CUDA(cudaEventCreate(&begin_));
  BFIO_CUDA(cudaEventCreate(&end_));
  BFIO_ASSIGN_OR_RETURN(const auto workspace, Allocate(kGemmWorkspaceBytes, "cuBLASLt"));
  BFIO_ASSIGN_OR_RETURN(gemms_, Gemms::Create(workspace));
  return absl::OkStatus();
}

CudaDeviceOps::~CudaDeviceOps() {
  // If the device hangs, freeing memory would block forever, and so would destroying cuBLASLt's handle: leak
  // them.
  if (!Enter().ok() || (done_ != nullptr && !Wait(kEndPatience).ok())) {
    static_cast<void>(gemms_.release());
    return;
  }
  for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  gemms_.reset();
  for (void* memory : memory_) cudaFree(memory);
  for (void* memory : pinned_) cudaFreeHost(memory);
  for (cudaEvent_t event : {done_, begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<AttentionGrid> CudaDeviceOps::FullAttentionGrid(int32_t head_dim) {
  BFIO_RETURN_IF_ERROR(Enter());
  AttentionGrid grid;
  const char* const error = gpu::FullAttentionGrid(head_dim, &grid);
  if (error != nullptr) return LaunchStatus(error, "Attention");
  return grid;
}

absl::StatusOr<DeviceMemory> CudaDeviceOps::Memory() {
  BFIO_RETURN_IF_ERROR(Enter());
  size_t free_bytes = 0, total_bytes = 0;
  BFIO_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return DeviceMemory{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

absl::StatusOr<void*> CudaDeviceOps::Allocate(int64_t bytes, absl::string_view what) {
  BFIO_RETURN_IF_ERROR(Enter());
  void* memory = nullptr;
  BFIO_RETURN_IF_ERROR(
      Named(CudaStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc"), what, bytes));
  memory_.push_back(memory);
  return memory;
}

absl::StatusOr<void*> CudaDeviceOps::AllocatePinned(int64_t bytes, absl::string_view what) {
  BFIO_RETURN_IF_ERROR(Enter());
  void* memory = nullptr;
  BFIO_RETURN_IF_ERROR(
      Named(CudaStatus(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "cudaMallocHost"), what, bytes));
  pinned_.push_back(memory);
  return memory;
}

absl::Status CudaDeviceOps::CopyIn(void* device, const void* pinned, int64_t bytes) {
  BFIO_RETURN_IF_ERROR(Enter());
  return CudaStatus(
      cudaMemcpyAsync(device, pinned, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
      "cudaMemcpyAsync to the device");
}

absl::Status CudaDeviceOps::CopyOut(void* pinned, const void* device, int64_t bytes) {
  BFIO_RETURN_IF_ERROR(Enter());
  return CudaStatus(
      cudaMemcpyAsync(pinned, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
      "cudaMemcpyAsync from the device");
}

absl::Status CudaDeviceOps::FillZero(void* device, int64_t bytes) {
  BFIO_RETURN_IF_ERROR(Enter());
  return CudaStatus(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
}

absl::Status CudaDeviceOps::Prepare(const GemmShape& shape, absl::Span<const Bf16* const> weights,
                                    const Bf16* x, void* y) {
  BFIO_RETURN_IF_ERROR(Enter());
  return gemms_->Prepare(shape, weights, x, y, stream_);
}

absl::Status CudaDeviceOps::Multiply(const GemmShape& shape, const Bf16* x, const Bf16* weight, void* y) {
  return gemms_->Multiply(shape, x, weight, y, stream_);
}

absl::StatusOr<int> CudaDeviceOps::Record(std::function<absl::Status()> work) {
  BFIO_RETURN_IF_ERROR(Enter());
  const auto recorded = RecordWork(stream_, work);
  BFIO_RETURN_IF_ERROR(recorded.status());
  graphs_.push_back(*recorded);
  BFIO_CUDA(cudaGraphUpload(*recorded, stream_));
  return static_cast<int>(graphs_.size()) - 1;
}

absl::Status CudaDeviceOps::Replay(int record) {
  BFIO_RETURN_IF_ERROR(Enter());
  return CudaStatus(cudaGraphLaunch(graphs_[static_cast<size_t>(record)], stream_), "cudaGraphLaunch");
}

absl::Status CudaDeviceOps::Wait(absl::Duration deadline) {
  BFIO_RETURN_IF_ERROR(Enter());
  BFIO_CUDA(cudaEventRecord(done_, stream_));
  return WaitFor(done_, deadline);
}

absl::StatusOr<double> CudaDeviceOps::Time(int record) {
  BFIO_RETURN_IF_ERROR(Enter());
  BFIO_CUDA(cudaEventRecord(begin_, stream_));
  BFIO_RETURN_IF_ERROR(Replay(record));
  BFIO_CUDA(cudaEventRecord(end_, stream_));
  BFIO_RETURN_IF_ERROR(WaitFor(end_, kTimeDeadline));
  float milliseconds = 0;
  BFIO_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return static_cast<double>(milliseconds) / 1e3;
}

#undef BFIO_CUDA

}  // namespace bfio::worker::gpu
