#include "worker/engine/cuda/kernels/sample.cuh"

#include "worker/engine/cuda/kernels/row_kernels.h"

namespace bfio::worker::gpu {

const char* LaunchSample(const SampleArgs& args, Stream stream) {
  if (args.grid_draws == 0) return nullptr;
  return Launch(SampleKernel, {args.grid_draws, 1, kSampleThreads, 0}, stream, args);
}

}  // namespace bfio::worker::gpu
