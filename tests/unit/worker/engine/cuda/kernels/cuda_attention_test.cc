// The attention kernels under the emulator, against a plain computation in double precision.

#include "gtest/gtest.h"
#include "simt/machine.h"
#include "tests/testing/cuda/attention_run.h"

namespace bfio::testing {
namespace {

class CudaAttentionTest : public ::testing::TestWithParam<simt::Order> {
 protected:
  void SetUp() override { simt::SetOrder(GetParam()); }
  void TearDown() override { simt::SetOrder(simt::Order::kForward); }
};
// Under a sanitizer one order of threads takes minutes, and the orders do not differ in anything that it
// checks.
#if defined(__SANITIZE_ADDRESS__) || defined(BFIO_TSAN)
INSTANTIATE_TEST_SUITE_P(Orders, CudaAttentionTest, ::testing::Values(simt::Order::kForward));
#else
INSTANTIATE_TEST_SUITE_P(Orders, CudaAttentionTest,
                         ::testing::Values(simt::Order::kForward, simt::Order::kReverse));
#endif

TEST_P(CudaAttentionTest, EqualsThePlainComputation) {
  for (const AttentionCase& attention_case : AttentionCases(false)) {
    EXPECT_EQ(CheckAttention(attention_case, RunAttention), "");
  }
}

TEST_P(CudaAttentionTest, ATokensResultDependsOnlyOnItsSequence) {
  for (const auto& [one, other] : SameBitsCases(false)) {
    EXPECT_EQ(CheckSameBits(one, other, RunAttention), "");
  }
}

}  // namespace
}  // namespace bfio::testing
