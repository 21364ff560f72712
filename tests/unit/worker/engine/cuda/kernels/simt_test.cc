// The kernel emulator itself: what it computes, and which errors it detects.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

// --- computation ---

BFIO_KERNEL(128, 1) SumKernel(const int* in, int* out) {
  BFIO_SHARED_ARRAY(int, sums, 4);
  int value = in[BlockIndex() * BlockThreads() + ThreadIndex()];
  for (int mask = 16; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  if (LaneIndex() == 0) sums[WarpIndex()] = value;
  SyncBlock();
  if (ThreadIndex() == 0) AtomicAdd(out, sums[0] + sums[1] + sums[2] + sums[3]);
}

TEST_P(SimtTest, BlocksReduceThroughShufflesAndSharedMemory) {
  simt::DeviceBuffer<int> in("in", 3 * 128), out("out", 1);
  int expected = 0;
  for (int i = 0; i < 3 * 128; ++i) expected += in[i] = i * i % 101;
  out[0] = 0;
  EXPECT_EQ(RunKernel({.blocks_x = 3, .threads = 128}, SumKernel, in.data(), out.data()), "");
  EXPECT_EQ(out[0], expected);
}

BFIO_KERNEL(32, 1) VoteKernel(const int* in, int* out) {
  const int lane = LaneIndex();
  out[lane] = static_cast<int>(Ballot(in[lane] > 0));
  out[32 + lane] = ShuffleDown(in[lane], 5);
  out[64 + lane] = Shuffle(in[lane], 31 - lane);
}

TEST_P(SimtTest, BallotAndShufflesFollowTheManual) {
  simt::DeviceBuffer<int> in("in", 32), out("out", 96);
  uint32_t positive = 0;
  for (int i = 0; i < 32; ++i) {
    in[i] = i % 3 == 0 ? 100 + i : -i;
    if (in[i] > 0) positive |= 1u << i;
  }
  EXPECT_EQ(RunKernel({}, VoteKernel, in.data(), out.data()), "");
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(static_cast<uint32_t>(out[i]), positive);
    EXPECT_EQ(out[32 + i], in[i + 5 < 32 ? i + 5 : i]);
    EXPECT_EQ(out[64 + i], in[31 - i]);
  }
}

// Transposes a 16x16 matrix of 16-bit numbers with ldmatrix.trans.
BFIO_KERNEL(32, 1) TransposeKernel(const int* in, int* out) {
  BFIO_SHARED_ARRAY(uint16_t, tile, 16 * 16);
  const int lane = LaneIndex();
  for (int i = lane; i < 256; i += 32) tile[i] = static_cast<uint16_t>(in[i]);
  SyncWarp();
  uint32_t r[4];
  // Matrix i has the rows from 8 (i % 2) and the columns from 8 (i / 2).
  LoadMatrix4Transposed(r, tile + (lane % 8 + lane / 8 % 2 * 8) * 16 + lane / 16 * 8);
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const int row = lane % 4 * 2 + half + i % 2 * 8, column = lane / 4 + i / 2 * 8;
      out[column * 16 + row] = static_cast<int>(r[i] >> 16 * half & 0xffff);
    }
  }
}

TEST_P(SimtTest, TransposedMatrixLoadsTranspose) {
  simt::DeviceBuffer<int> in("in", 256), out("out", 256);
  for (int i = 0; i < 256; ++i) in[i] = 7 * i + 1;
  EXPECT_EQ(RunKernel({}, TransposeKernel, in.data(), out.data()), "");
  for (int i = 0; i < 256; ++i) EXPECT_EQ(out[i % 16 * 16 + i / 16], in[i]);
}

// out = a * b plus small constants, for a [16][16] and b [8 columns][16] of small integers: exact in bf16 and
// fp32.
BFIO_KERNEL(32, 1) ProductKernel(const int* in, int* out) {
  BFIO_SHARED_ARRAY(Bf16, tile, 24 * 16);
  const int lane = LaneIndex();
  for (int i = lane; i < 24 * 16; i += 32) tile[i] = ToBf16(static_cast<float>(in[i]));
  SyncWarp();
  uint32_t a[4], b[4];
  LoadMatrix4(a, tile + lane % 16 * 16 + lane / 16 * 8);
  LoadMatrix4(b, tile + (16 + lane % 8) * 16 + lane / 8 % 2 * 8);
  float d[4] = {1, 2, 3, 4};
  MmaBf16(d, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) {
    out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = static_cast<int>(d[i]);
  }
}

TEST_P(SimtTest, TensorProductEqualsThePlainOne) {
  simt::DeviceBuffer<int> in("in", 24 * 16), out("out", 128);
  for (int i = 0; i < 24 * 16; ++i) in[i] = i * 5 % 13 - 6;
  EXPECT_EQ(RunKernel({}, ProductKernel, in.data(), out.data()), "");
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int expected = 1 + row / 8 * 2 + column % 2;
      for (int k = 0; k < 16; ++k) expected += in[row * 16 + k] * in[(16 + column) * 16 + k];
      EXPECT_EQ(out[row * 8 + column], expected) << row << ", " << column;
    }
  }
}

TEST(SimtBf16, RoundsToNearestEven) {
  EXPECT_EQ(ToBf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(BitsFloat(0x3f808000)).bits, 0x3f80);  // a tie rounds to even
  EXPECT_EQ(ToBf16(BitsFloat(0x3f818000)).bits, 0x3f82);
  EXPECT_EQ(ToBf16(BitsFloat(0x3f808001)).bits, 0x3f81);
  EXPECT_EQ(PackBf16(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(LowFloat(0xc0003f80u), 1.0f);
  EXPECT_EQ(HighFloat(0xc0003f80u), -2.0f);
}

// --- detected errors ---

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
