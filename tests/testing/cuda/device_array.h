// GPU memory for test programs. Any CUDA error ends the program with a line that names the failed call.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/types/span.h"

namespace bfio::testing {

inline void CudaMust(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}

// Ends the program if `error`, the result of a launch, is not null.
inline void LaunchMust(const char* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "launch: %s\n", error);
  std::exit(1);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    CudaMust(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(1, size * sizeof(T))),
             "cudaMalloc");
  }
  explicit DeviceArray(absl::Span<const T> content) : DeviceArray(content.size()) {
    CudaMust(cudaMemcpy(data_, content.data(), content.size() * sizeof(T), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  void Fill(int byte) const { CudaMust(cudaMemset(data_, byte, bytes()), "cudaMemset"); }
  std::vector<T> Content() const {
    std::vector<T> content(size_);
    CudaMust(cudaMemcpy(content.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return content;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace bfio::testing
