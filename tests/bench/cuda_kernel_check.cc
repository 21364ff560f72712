// bfio_cuda_kernel_check: the attention kernels' test cases on a real GPU, and more that only a GPU can do in
// time.
//
// The cases are those of cuda_attention_test, which runs them under an emulator; in particular that a token's
// result is the same, to the last bit, alone, in a batch and in pieces. Prints a line per failure and a
// summary; exits with 1 when there was one. Under compute-sanitizer it checks the kernels' memory accesses
// too.
//
// Usage: bfio_cuda_kernel_check
#include <cstdio>
#include <string>
#include <vector>

#include "tests/testing/cuda/attention_device.h"

namespace bfio::testing {
namespace {

int CheckAll() {
  int checks = 0, failures = 0;
  const auto report = [&](const std::string& difference) {
    ++checks;
    if (difference.empty()) return;
    ++failures;
    std::printf("FAILED %s\n", difference.c_str());
  };
  for (const AttentionCase& attention_case : AttentionCases(true)) {
    report(CheckAttention(attention_case, RunAttentionOnDevice));
  }
  for (const auto& [one, other] : SameBitsCases(true))
    report(CheckSameBits(one, other, RunAttentionOnDevice));
  for (const auto& [one, other] : SameBitsCases(false))
    report(CheckSameBits(one, other, RunAttentionOnDevice));
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace bfio::testing

int main() {
  cudaDeviceProp properties;
  bfio::testing::CudaMust(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, compute capability %d.%d\n", properties.name, properties.major, properties.minor);
  return bfio::testing::CheckAll();
}
