// Work of a stream, recorded once and replayed (a CUDA graph).
//
// Purpose: one way to record, for steps and for timing. Threads: the stream's.
#ifndef BFIO_WORKER_ENGINE_CUDA_DEVICE_RECORDED_H_
#define BFIO_WORKER_ENGINE_CUDA_DEVICE_RECORDED_H_

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bfio::worker::gpu {

// What `work` queues in `stream`, which does not run now; other threads may allocate meanwhile. The caller
// destroys it. Errors: work's, or CUDA's with the call's name.
absl::StatusOr<cudaGraphExec_t> RecordWork(cudaStream_t stream, absl::FunctionRef<absl::Status()> work);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_DEVICE_RECORDED_H_
