// Work of a stream, recorded once and replayed (a CUDA graph).
//
// Purpose: the only way to record, for steps and for timing. Threads: the stream's thread.
#ifndef BFIO_WORKER_ENGINE_CUDA_DEVICE_RECORDED_H_
#define BFIO_WORKER_ENGINE_CUDA_DEVICE_RECORDED_H_

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bfio::worker::gpu {

// Records what `work` queues in `stream` without running it; other threads may allocate meanwhile. The caller
// destroys the result. Errors: those of `work`, or CUDA's with the call's name.
absl::StatusOr<cudaGraphExec_t> RecordWork(cudaStream_t stream, absl::FunctionRef<absl::Status()> work);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_DEVICE_RECORDED_H_
