// Selects the attention kernels for a head_dim and launches them, both on a GPU and in the tests' emulator.
#pragma once

#include "worker/engine/cuda/kernels/attention.cuh"
#include "worker/engine/cuda/kernels/attention.h"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

template <int kHeadDim, int kStages = kAttentionStages>
const char* LaunchAttentionOf(AttentionArgs args, const AttentionGrid& grid, Stream stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  args.scale *= kLog2E;
  const char* error = nullptr;
  if (grid.long_blocks > 0) {
    constexpr int kBytes = AttentionShared<kHeadDim, true, kStages>::kBytes;
    error = Launch(LongAttentionKernel<kHeadDim, kStages>, {grid.long_blocks, 1, kAttentionThreads, kBytes},
                   stream, args);
  }
  if (error == nullptr && grid.short_blocks > 0) {
    constexpr int kBytes = AttentionShared<kHeadDim, false, kStages>::kBytes;
    error = Launch(ShortAttentionKernel<kHeadDim, kStages>, {grid.short_blocks, 1, kAttentionThreads, kBytes},
                   stream, args);
  }
  if (error == nullptr && grid.combine_blocks > 0) {
    error = Launch(CombineKernel<kHeadDim>, {grid.combine_blocks, 1, kAttentionThreads, 0}, stream, args);
  }
  return error;
}

inline const char* LaunchAttentionKernels(const AttentionArgs& args, const AttentionGrid& grid,
                                          Stream stream) {
  switch (args.kv.head_dim) {
    case 16: return LaunchAttentionOf<16>(args, grid, stream);
    case 32: return LaunchAttentionOf<32>(args, grid, stream);
    case 64: return LaunchAttentionOf<64>(args, grid, stream);
    case kAttentionHeadDimOfTwo:
      if (grid.stages == 2) return LaunchAttentionOf<kAttentionHeadDimOfTwo, 2>(args, grid, stream);
      return LaunchAttentionOf<kAttentionHeadDimOfTwo>(args, grid, stream);
    default: return "no attention kernel for this head_dim";
  }
}

}  // namespace bfio::worker::gpu
