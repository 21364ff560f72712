// bfio_cuda_kernel_check: the kernels' test cases on a GPU, and further ones that are only fast enough there.
//
// Attention has the cases of cuda_attention_test, which runs them under an emulator; in particular that a
// token's result is bitwise the same alone, in a batch and in chunks. The kernels between matrix products and
// the sampling of tokens are tested by their own test files (tests/testing/cuda/kernel_memory.h). Under
// compute-sanitizer it checks the memory accesses of all of them.
//
// Usage: bfio_cuda_kernel_check [gtest's flags]; exit code 1 when a case has failed.
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/testing/cuda/attention_run.h"

namespace bfio::testing {
namespace {

TEST(AttentionOnAGpu, IsWithinRounding) {
  for (const AttentionCase& attention_case : AttentionCases(true)) {
    EXPECT_EQ(CheckAttention(attention_case, RunAttention), "");
  }
}

TEST(AttentionOnAGpu, HasTheSameBitsInAnyBatch) {
  for (const bool large : {true, false}) {
    for (const auto& [one, other] : SameBitsCases(large)) {
      EXPECT_EQ(CheckSameBits(one, other, RunAttention), "");
    }
  }
}

}  // namespace
}  // namespace bfio::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  cudaDeviceProp properties;
  bfio::testing::CudaMust(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, compute capability %d.%d\n", properties.name, properties.major, properties.minor);
  return RUN_ALL_TESTS();
}
