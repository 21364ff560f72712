// The emulated device completes work as late as a GPU may, so that code which does not wait for it fails.
#include "tests/testing/emulated_device_ops.h"

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/cuda/kernels/row_kernels.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

class EmulatedStreamTest : public ::testing::Test {
 protected:
  EmulatedStreamTest() {
    in = static_cast<int32_t*>(*ops.AllocatePinned(64, "what goes in"));
    out = static_cast<int32_t*>(*ops.AllocatePinned(64, "what comes out"));
    there = *ops.Allocate(64, "there");
    for (int i = 0; i < 16; ++i) in[i] = i;
  }
  absl::Status Wait() { return ops.Wait(absl::InfiniteDuration()); }

  EmulatedDevice device;
  EmulatedDeviceOps ops{device};
  int32_t *in, *out;
  void* there;
};

TEST_F(EmulatedStreamTest, PinnedMemoryIsReusableOnlyAfterAWait) {
  ASSERT_TRUE(ops.CopyIn(there, in, 64).ok());
  ASSERT_TRUE(Wait().ok());
  in[3] = 100;
  ASSERT_TRUE(ops.CopyIn(there, in, 64).ok());
  in[3] = 7;
  const absl::Status status = Wait();
  EXPECT_THAT(std::string(status.message()), HasSubstr("(what goes in) was changed before the copy"));
  EXPECT_EQ(Wait(), status) << "the device is not to be used again";
}

TEST_F(EmulatedStreamTest, AResultIsAvailableOnlyAfterAWait) {
  ASSERT_TRUE(ops.CopyIn(there, in, 64).ok());
  std::memset(out, 0, 64);
  ASSERT_TRUE(ops.CopyOut(out, there, 32).ok());
  EXPECT_EQ(out[1], -1) << "poison";
  EXPECT_EQ(out[9], 0) << "beyond the copy";
  ASSERT_TRUE(Wait().ok());
  EXPECT_EQ(out[1], 1);
  EXPECT_EQ(out[9], 0);
}

TEST_F(EmulatedStreamTest, KernelsRunInStreamOrder) {
  const auto kernel = [&] {
    ASSERT_EQ(
        worker::gpu::LaunchFillRandom(static_cast<worker::gpu::Bf16*>(there), 32, 1, 0, 1, ops.stream()),
        nullptr);
  };
  ASSERT_TRUE(ops.FillZero(there, 64).ok());
  kernel();
  ASSERT_TRUE(ops.CopyOut(out, there, 64).ok());
  ASSERT_TRUE(ops.FillZero(there, 64).ok());
  ASSERT_TRUE(Wait().ok());
  EXPECT_EQ(out[0], 0x3f803f80) << "two ones in bf16: before the zeros, and behind the first ones";
  // A recorded kernel runs once for each replay.
  const auto record = ops.Record([&] {
    kernel();
    return absl::OkStatus();
  });
  ASSERT_TRUE(record.ok());
  ASSERT_TRUE(ops.CopyOut(out, there, 64).ok());
  ASSERT_TRUE(Wait().ok());
  EXPECT_EQ(out[0], 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(ops.FillZero(there, 64).ok());
    ASSERT_TRUE(ops.Replay(*record).ok());
    ASSERT_TRUE(ops.CopyOut(out, there, 64).ok());
    ASSERT_TRUE(Wait().ok());
    EXPECT_EQ(out[0], 0x3f803f80);
  }
}

TEST_F(EmulatedStreamTest, CopiesNeedPinnedMemory) {
  int32_t plain[16] = {};
  EXPECT_EQ(ops.CopyIn(there, plain, 64).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops.CopyOut(plain, there, 64).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops.CopyIn(there, in, 65).code(), absl::StatusCode::kInvalidArgument) << "beyond the end";
}

}  // namespace
}  // namespace bfio::testing
