#include "worker/engine/cuda/kernels/attention.h"

#include "worker/engine/cuda/kernels/attention_launch.cuh"

namespace bfio::worker::gpu {
namespace {

// Blocks of `kernel` that the device runs at a time; negative: the error is in *error.
int ResidentBlocks(void (*kernel)(AttentionArgs), int shared_bytes, const char** error) {
  int device = 0, multiprocessors = 0, blocks = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (result == cudaSuccess) {
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  if (result == cudaSuccess) {
    result = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kAttentionThreads, shared_bytes);
  }
  if (result != cudaSuccess) *error = cudaGetErrorString(result);
  return multiprocessors * blocks;
}

template <int kHeadDim>
const char* FullGridOf(AttentionGrid* grid) {
  const char* error = nullptr;
  grid->long_blocks =
      ResidentBlocks(LongAttentionKernel<kHeadDim>, AttentionShared<kHeadDim, true>::kBytes, &error);
  grid->short_blocks =
      ResidentBlocks(ShortAttentionKernel<kHeadDim>, AttentionShared<kHeadDim, false>::kBytes, &error);
  grid->combine_blocks = ResidentBlocks(CombineKernel<kHeadDim>, 0, &error);
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
