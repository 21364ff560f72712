// Attention of a step over the paged KV cache, on a GPU.
//
// Purpose: the launcher of attention.cuh's kernels. The step's work is planned on the host
// (../attention_plan.h) and read from device memory, so the launch depends on the grid alone and can be
// captured in a graph and replayed for any step. Nothing is allocated. Threads: any; launches on one stream
// run in order. Errors: nullptr, or a text that stays valid until the next launch.
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_H_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_H_

#include "worker/engine/cuda/kernels/attention_args.h"
#include "worker/engine/cuda/kernels/device_types.h"

namespace bfio::worker::gpu {

// Blocks of each kernel; 0: it is not launched, and there must be no work for it. Any other number is
// correct.
struct AttentionGrid {
  int32_t long_blocks = 0;
  int32_t short_blocks = 0;
  int32_t combine_blocks = 0;
  // Tiles in a block's shared memory: 3, or with head_dim 128 also 2 (attention.cuh). The same bits.
  int32_t stages = 3;
};

// As many blocks as the current device can run at a time, with as many stages as it does most with. Loads the
// kernels, so that no launch has to.
const char* FullAttentionGrid(int32_t head_dim, AttentionGrid* grid);

// REQUIRES: CheckAttentionShape (../attention_plan.h) is OK for what args says; args.out of all rows
// within args' counts is writable.
const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_ATTENTION_H_
