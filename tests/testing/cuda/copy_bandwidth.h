// The bandwidth of a GPU's memory in a plain copy, as the reference of the benchmarks.
//
// Purpose: one definition of this measurement. Copies are queued one by one: within a graph they can be
// slower, and a slow copy would make the measured kernels look better. Threads: one; uses the current
// device's default stream.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "tests/testing/cuda/device_array.h"

namespace bfio::testing {

// Duration of the work that `queue` puts into the default stream.
template <class Queue>
double Milliseconds(const Queue& queue) {
  cudaEvent_t start, stop;
  CudaMust(cudaEventCreate(&start), "cudaEventCreate");
  CudaMust(cudaEventCreate(&stop), "cudaEventCreate");
  CudaMust(cudaEventRecord(start), "cudaEventRecord");
  queue();
  CudaMust(cudaEventRecord(stop), "cudaEventRecord");
  CudaMust(cudaEventSynchronize(stop), "cudaEventSynchronize");
  float ms = 0;
  CudaMust(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return ms;
}

// Bytes read plus bytes written per second; the best of several passes.
inline double CopyBytesPerSecond() {
  constexpr int64_t kBytes = int64_t{2} << 30;
  constexpr int kCopies = 8, kPasses = 4;
  const DeviceArray<char> from(kBytes), to(kBytes);
  from.Fill(1);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double ms = Milliseconds([&] {
      for (int i = 0; i < kCopies; ++i) {
        CudaMust(cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice),
                 "cudaMemcpy");
      }
    });
    best = std::max(best, 2.0 * kCopies * kBytes / (ms / 1000));
  }
  return best;
}

}  // namespace bfio::testing
