// Attention of a step over the paged KV cache, on a GPU. Launches attention.cuh's kernels. The step's work is
// planned on the host (../attention_plan.h) and read from device memory, so the launch depends only on the
// grid and can be captured in a graph and replayed for any step. Allocates nothing. Threads: any; launches on
// one stream run in order. Errors: nullptr for success, or a text that stays valid until the next launch.
#pragma once

#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/engine/cuda/kernels/device_types.h"

namespace bfio::worker::gpu {

// Blocks of each kernel. 0: the kernel is not launched, and there must be no work for it. Any other number
// gives correct results.
struct AttentionGrid {
  int32_t long_blocks = 0;
  int32_t short_blocks = 0;
  int32_t combine_blocks = 0;
  // Tiles in a block's shared memory: 3, or with head_dim 128 also 2 (attention.cuh). Does not change
  // results.
  int32_t stages = 3;
};

// Sets `grid` to as many blocks as the current device can run at the same time, with the number of stages
// that allows the most. Loads the kernels, so that no launch has to.
const char* FullAttentionGrid(int32_t head_dim, AttentionGrid* grid);

// REQUIRES: CheckAttentionShape (../attention_plan.h) is OK for the shape in `args`; args.out is writable for
// all rows within args' counts.
const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream);

}  // namespace bfio::worker::gpu
