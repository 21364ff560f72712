#include "worker/engine/cuda/device/cuda_status.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::worker::gpu {

absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto text = absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::Status WaitFor(cudaEvent_t event, absl::Duration deadline) {
  const absl::Time end = MonotonicNow() + deadline;
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state != cudaErrorNotReady) return CudaStatus(state, "cudaEventQuery");
    if (MonotonicNow() > end) {
      return absl::DeadlineExceededError(
          absl::StrCat("the GPU has not finished within ", absl::FormatDuration(deadline)));
    }
    std::this_thread::yield();
  }
}

absl::StatusOr<cudaGraphExec_t> RecordWork(cudaStream_t stream, absl::FunctionRef<absl::Status()> work) {
  // Thread-local capture, because other ranks' threads may allocate meanwhile.
  absl::Status status =
      CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  if (!status.ok()) return status;
  status = work();
  cudaGraph_t graph = nullptr;
  // Also after an error, or the stream would stay in capture mode; the first error is kept.
  status.Update(CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t executable = nullptr;
  if (status.ok()) status = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  return executable;
}

}  // namespace bfio::worker::gpu
