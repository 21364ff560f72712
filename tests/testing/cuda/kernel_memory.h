// Memory for tests of single kernels: the emulator's, or with BFIO_KERNELS_ON_GPU a GPU's.
//
// Purpose: row_kernels_test.cc and sample_test.cc run under the emulator in every build, and as a part of
// bfio_cuda_kernel_check on a GPU. Both kinds of buffer are filled with poison at first and are read through
// Content. Threads: as simt/machine.h; on a GPU any, with the current device.
#pragma once

#ifndef BFIO_KERNELS_ON_GPU
#include "simt/machine.h"

namespace bfio::testing {

using simt::DeviceBuffer;
using KernelOrder = simt::Order;
inline constexpr bool kOnGpu = false;
inline constexpr unsigned char kPoison = simt::kPoison;

inline void SetKernelOrder(KernelOrder order) {
  simt::SetOrder(order);
}
// The error of a launch without a stream, after the kernel has ended.
inline const char* Finished(const char* launched) {
  return launched;
}

}  // namespace bfio::testing
#else
#include <string>
#include <vector>

#include "tests/testing/cuda/device_array.h"

namespace bfio::testing {

// Has no effect: a GPU determines the order itself.
enum class KernelOrder { kForward, kReverse };
inline constexpr bool kOnGpu = true;
inline constexpr unsigned char kPoison = 0xff;

inline void SetKernelOrder(KernelOrder) {}
inline const char* Finished(const char* launched) {
  if (launched != nullptr) return launched;
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer(const std::string&, size_t size) : array_(size) { array_.Fill(kPoison); }
  DeviceBuffer(const std::string&, const std::vector<T>& content) : array_(absl::MakeConstSpan(content)) {}

  T* data() const { return array_.data(); }
  size_t size() const { return array_.size(); }
  std::vector<T> Content() const { return array_.Content(); }

 private:
  DeviceArray<T> array_;
};

}  // namespace bfio::testing
#endif
