#include "worker/engine/cuda/kernels/attention.h"

#include "worker/engine/cuda/kernels/attention_launch.cuh"

namespace bfio::worker::gpu {
namespace {

// Blocks of `kernel` that the current device runs at a time.
const char* ResidentBlocks(void (*kernel)(AttentionArgs), int shared_bytes, int32_t* blocks) {
  int device = 0, multiprocessors = 0, shared_limit = 0, per_multiprocessor = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (result == cudaSuccess && shared_limit < shared_bytes) {
    return "the GPU has too little shared memory per block for attention with this head_dim";
  }
  if (result == cudaSuccess) {
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  if (result == cudaSuccess) {
    result = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, kAttentionThreads,
                                                           shared_bytes);
  }
  *blocks = multiprocessors * per_multiprocessor;
  return result == cudaSuccess ? nullptr : cudaGetErrorString(result);
}

template <int kHeadDim>
const char* FullGridOf(AttentionGrid* grid) {
  const char* error = ResidentBlocks(LongAttentionKernel<kHeadDim>, AttentionShared<kHeadDim, true>::kBytes,
                                     &grid->long_blocks);
  if (error == nullptr) {
    error = ResidentBlocks(ShortAttentionKernel<kHeadDim>, AttentionShared<kHeadDim, false>::kBytes,
                           &grid->short_blocks);
  }
  if (error == nullptr) error = ResidentBlocks(CombineKernel<kHeadDim>, 0, &grid->combine_blocks);
  return error;
}

}  // namespace

const char* FullAttentionGrid(int32_t head_dim, AttentionGrid* grid) {
  switch (head_dim) {
    case 16:
      return FullGridOf<16>(grid);
    case 32:
      return FullGridOf<32>(grid);
    case 64:
      return FullGridOf<64>(grid);
    case 128:
      return FullGridOf<128>(grid);
    default:
      return "no attention kernel for this head_dim";
  }
}

const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream) {
  return LaunchAttentionKernels(args, grid, stream);
}

}  // namespace bfio::worker::gpu
