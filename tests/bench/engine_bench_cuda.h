// The GPU part of bfio_engine_bench.
//
// Purpose: keeps CUDA out of the other part; in a build without CUDA it prints that there is none. Threads:
// none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bfio::worker {

struct CudaBench {
  // Directory of a checkpoint, or the name of a shape; one of them is empty.
  std::string model;
  std::string shape;
  int32_t device = 0;
  std::vector<int64_t> batches, contexts;
  int64_t steps = 0;
  int32_t page_tokens = 0;
  int64_t step_tokens = 0;
  // Dense bf16 FLOP/s of the GPU.
  double peak_flops = 0;
};

// Returns the program's exit code.
int RunCudaBench(const CudaBench& bench);

}  // namespace bfio::worker
