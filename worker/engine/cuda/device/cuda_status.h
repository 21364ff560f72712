// Converts CUDA's errors to statuses, and waits without blocking. Every call of the CUDA runtime goes through
// CudaStatus, so that an error names its call. Threads: pure functions; WaitFor is called by the thread that
// waits.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio::worker::gpu {

// Records what `work` queues in `stream` without running it; other threads may allocate meanwhile. The caller
// destroys the result. Errors: those of `work`, or CUDA's with the call's name.
absl::StatusOr<cudaGraphExec_t> RecordWork(cudaStream_t stream, absl::FunctionRef<absl::Status()> work);

// RESOURCE_EXHAUSTED when memory is short, UNAVAILABLE for all other errors.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

// Polls until the event has happened. DEADLINE_EXCEEDED after `deadline`.
absl::Status WaitFor(cudaEvent_t event, absl::Duration deadline);

}  // namespace bfio::worker::gpu
