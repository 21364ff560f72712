// bfio_engine_bench --engine=cuda in a build without CUDA.
#include "tests/bench/engine_bench_cuda.h"
#include "tests/bench/engine_measure.h"
#include "worker/engine/cuda/device/cuda_engine.h"

namespace bfio::worker {

int RunCudaBench(const CudaBench& bench) {
  Fail(CheckCudaDevice(bench.device));
}

}  // namespace bfio::worker
