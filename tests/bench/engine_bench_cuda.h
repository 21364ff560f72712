// The GPU's half of bfio_engine_bench.
//
// Purpose: keeps CUDA out of the other half; in a build without CUDA it says that there is none. Threads:
// none.
#ifndef BFIO_TESTS_BENCH_ENGINE_BENCH_CUDA_H_
#define BFIO_TESTS_BENCH_ENGINE_BENCH_CUDA_H_

#include <cstdint>
#include <string>
#include <vector>

namespace bfio::worker {

struct CudaBench {
  // Directory of a checkpoint, or the name of a shape; one of them empty.
  std::string model;
  std::string shape;
  int32_t device = 0;
  std::vector<int64_t> batches, contexts;
  int64_t steps = 0;
  int32_t page_tokens = 0;
  int64_t step_tokens = 0;
  // Of the GPU, dense bf16, per second.
  double peak_flops = 0;
};

// The program's exit code.
int RunCudaBench(const CudaBench& bench);

}  // namespace bfio::worker

#endif  // BFIO_TESTS_BENCH_ENGINE_BENCH_CUDA_H_
