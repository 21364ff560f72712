#include "worker/engine/cuda/device/recorded.h"

#include "worker/engine/cuda/device/cuda_status.h"

namespace bfio::worker::gpu {

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
