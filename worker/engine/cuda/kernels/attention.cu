#include "worker/engine/cuda/kernels/attention.h"

#include "worker/engine/cuda/kernels/attention_launch.cuh"

namespace bfio::worker::gpu {
namespace {

// Blocks of `kernel` that the current device can run at the same time; 0 if one alone needs too many
// resources.
const char* ResidentBlocks(void (*kernel)(AttentionArgs), int shared_bytes, int32_t* blocks) {
  *blocks = 0;
  int device = 0, multiprocessors = 0, shared_limit = 0, per_multiprocessor = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (result == cudaSuccess && shared_limit < shared_bytes) return nullptr;
  if (result == cudaSuccess) {
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  // Otherwise the driver decides how much of the first-level cache is shared memory; if it is too little,
  // fewer blocks run than are counted here.
  if (result == cudaSuccess && shared_bytes > 0) {
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
  }
  if (result == cudaSuccess) {
    result = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, kAttentionThreads,
                                                           shared_bytes);
  }
  *blocks = multiprocessors * per_multiprocessor;
  return result == cudaSuccess ? nullptr : cudaGetErrorString(result);
}

template <int kHeadDim, int kStages>
const char* GridOf(AttentionGrid* grid) {
  grid->stages = kStages;
  const char* error = ResidentBlocks(LongAttentionKernel<kHeadDim, kStages>,
                                     AttentionShared<kHeadDim, true, kStages>::kBytes, &grid->long_blocks);
  if (error == nullptr) {
    error = ResidentBlocks(ShortAttentionKernel<kHeadDim, kStages>,
                           AttentionShared<kHeadDim, false, kStages>::kBytes, &grid->short_blocks);
  }
  return error;
}

template <int kHeadDim>
const char* FullGridOf(AttentionGrid* grid) {
  const char* error = GridOf<kHeadDim, kAttentionStages>(grid);
  if constexpr (kHeadDim == kAttentionHeadDimOfTwo) {
    AttentionGrid two;
    if (error == nullptr) error = GridOf<kHeadDim, 2>(&two);
    if (two.short_blocks > grid->short_blocks) *grid = two;
  }
  if (error == nullptr) error = ResidentBlocks(CombineKernel<kHeadDim>, 0, &grid->combine_blocks);
  if (error == nullptr && (grid->long_blocks == 0 || grid->short_blocks == 0)) {
    error = "the GPU has too little shared memory per block for attention with this head_dim";
  }
  return error;
}

}  // namespace

const char* FullAttentionGrid(int32_t head_dim, AttentionGrid* grid) {
  switch (head_dim) {
    case 16: return FullGridOf<16>(grid);
    case 32: return FullGridOf<32>(grid);
    case 64: return FullGridOf<64>(grid);
    case 128: return FullGridOf<128>(grid);
    default: return "no attention kernel for this head_dim";
  }
}

const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream) {
  return LaunchAttentionKernels(args, grid, stream);
}

}  // namespace bfio::worker::gpu
