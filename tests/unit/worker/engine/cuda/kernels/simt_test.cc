// Which errors the kernel emulator detects. What it computes is proven by the kernels that it runs.

#include "gmock/gmock.h"
#include "simt/memory.h"
#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {
namespace {

using ::testing::HasSubstr;

std::string RunKernel(const LaunchShape& shape, void (*kernel)(const int*, int*), const int* in, int* out) {
  const char* error = Launch(kernel, shape, nullptr, in, out);
  return error == nullptr ? "" : error;
}

class SimtTest : public ::testing::TestWithParam<simt::Order> {
 protected:
  void SetUp() override { simt::SetOrder(GetParam()); }
  void TearDown() override { simt::SetOrder(simt::Order::kForward); }
};
INSTANTIATE_TEST_SUITE_P(Orders, SimtTest, ::testing::Values(simt::Order::kForward, simt::Order::kReverse));

BFIO_KERNEL(64, 1) DivergentBarrierKernel(const int* in, int* out) {
  if (ThreadIndex() < 32) {
    SyncBlock();
  } else {
    SyncBlock();
  }
}
BFIO_KERNEL(64, 1) ExitBeforeBarrierKernel(const int* in, int* out) {
  if (ThreadIndex() == 40) return;
  SyncBlock();
}
BFIO_KERNEL(32, 1) DivergentShuffleKernel(const int* in, int* out) {
  if (LaneIndex() != 7) out[LaneIndex()] = ShuffleXor(LaneIndex(), 1);
}

TEST_P(SimtTest, DivergenceEndsTheLaunch) {
  simt::DeviceBuffer<int> memory("memory", 64);
  const auto run = [&](int threads, auto kernel) {
    return RunKernel({.threads = threads}, kernel, memory.data(), memory.data());
  };
  EXPECT_THAT(run(64, DivergentBarrierKernel),
              HasSubstr("divergent barrier: thread 0 waits in SyncBlock at "));
  EXPECT_THAT(run(64, ExitBeforeBarrierKernel), HasSubstr("thread 40 has exited"));
  EXPECT_THAT(run(32, DivergentShuffleKernel), HasSubstr("but thread 7 has exited"));
}

// Copies 16 bytes per lane and adds them up, with or without waiting for the copy first.
template <bool kWait>
BFIO_KERNEL(32, 1)
CopyKernel(const int* in, int* out) {
  BFIO_DYNAMIC_SHARED(bytes);
  int* copy = reinterpret_cast<int*>(bytes) + 4 * LaneIndex();
  CopyAsync16(copy, in + 4 * LaneIndex(), LaneIndex() != 3);
  CommitAsync();
  CommitAsync();
  if (kWait) WaitAsync<1>();
  out[LaneIndex()] = copy[0] + copy[1] + copy[2] + copy[3];
  WaitAsync<0>();
}

TEST_P(SimtTest, AsyncCopiesArriveAtTheWait) {
  simt::DeviceBuffer<int> in("in", 128), out("out", 32);
  for (int i = 0; i < 128; ++i) in[i] = i;
  const LaunchShape shape{.threads = 32, .shared_bytes = 512};
  EXPECT_EQ(RunKernel(shape, CopyKernel<true>, in.data(), out.data()), "");
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], i == 3 ? 0 : 16 * i + 6);
  EXPECT_EQ(RunKernel(shape, CopyKernel<false>, in.data(), out.data()), "");
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], -4);  // four times the poison value
}

BFIO_KERNEL(32, 1) NoWaitKernel(const int* in, int* out) {
  BFIO_DYNAMIC_SHARED(bytes);
  CopyAsync16(bytes + 16 * LaneIndex(), in + 4 * LaneIndex(), true);
  CommitAsync();
}
BFIO_KERNEL(32, 1) MisalignedCopyKernel(const int* in, int* out) {
  BFIO_DYNAMIC_SHARED(bytes);
  CopyAsync16(bytes, in + 1, true);
}
BFIO_KERNEL(32, 1) LongReadKernel(const int* in, int* out) {
  out[0] = in[128 + LaneIndex()];
}
BFIO_KERNEL(32, 1) LongVectorKernel(const int* in, int* out) {
  out[0] = Load16(in + 128).x;
}
BFIO_KERNEL(32, 1) WriteBeforeKernel(const int* in, int* out) {
  out[-1 - LaneIndex()] = 0;
}
BFIO_KERNEL(32, 1) LongSharedWriteKernel(const int* in, int* out) {
  BFIO_SHARED_ARRAY(int, array, 8);
  int* end = array + 8;
  if (LaneIndex() == 0) *end = 1;
}

TEST_P(SimtTest, InvalidAccessesEndTheLaunch) {
  simt::DeviceBuffer<int> in("in", 128), out("out", 33);
  const auto run = [&](auto kernel) {
    return RunKernel({.threads = 32, .shared_bytes = 512}, kernel, in.data(), out.data());
  };
  EXPECT_THAT(run(NoWaitKernel), HasSubstr("before it has waited for its async copies"));
  EXPECT_THAT(run(MisalignedCopyKernel), HasSubstr("CopyAsync from misaligned memory"));
  EXPECT_THAT(run(LongReadKernel), HasSubstr("access outside of buffer 'in', at byte "));
  EXPECT_THAT(run(LongVectorKernel), HasSubstr("Load16: outside of shared memory and of all buffers"));
  EXPECT_THAT(run(LongSharedWriteKernel), HasSubstr("past the end of a shared array"));
  // Damages memory before `out`, which every later launch would report too, so it is the last.
  EXPECT_THAT(run(WriteBeforeKernel), HasSubstr("a write next to buffer 'out'"));
}

// Lane 0 of each warp reads what the other warp wrote, without a barrier in between.
BFIO_KERNEL(64, 1) RaceKernel(const int* in, int* out) {
  BFIO_SHARED_ARRAY(int, value, 2);
  if (LaneIndex() == 0) value[WarpIndex()] = 5;
  SyncWarp();
  if (LaneIndex() == 0) out[WarpIndex()] = value[1 - WarpIndex()];
}

TEST_P(SimtTest, AMissingBarrierReadsPoison) {
  simt::DeviceBuffer<int> out("out", 2);
  EXPECT_EQ(RunKernel({.threads = 64}, RaceKernel, out.data(), out.data()), "");
  EXPECT_EQ(out[0] == -1 || out[1] == -1, true);
}

}  // namespace
}  // namespace bfio::worker::gpu
