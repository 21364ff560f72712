// The engine's kernels compiled for the emulator instead of a GPU.
#include "worker/engine/cuda/kernels/attention_launch.cuh"
#include "worker/engine/cuda/kernels/row_kernels.cu"
#include "worker/engine/cuda/kernels/sample.cu"

namespace bfio::worker::gpu {

const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream) {
  return LaunchAttentionKernels(args, grid, stream);
}

}  // namespace bfio::worker::gpu
