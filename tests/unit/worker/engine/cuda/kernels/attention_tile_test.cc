// The layout of attention's tiles in shared memory: every piece has a place of its own, without bank
// conflicts.
//
// Shared memory has 32 banks of 4 bytes. An access of 16 bytes is served for 8 lanes at a time, one of 8
// bytes for 16 lanes; it takes no extra time if they use every bank at most once.
#include "worker/engine/cuda/kernels/attention_tile.cuh"

#include "gtest/gtest.h"

namespace bfio::worker::gpu {
namespace {

constexpr int kBankRow = 128;

template <int kHeadDim>
void CheckTile() {
  constexpr int kPieces = kHeadDim / 8;
  std::set<int> places;
  for (int row = 0; row < kTileTokens; ++row) {
    for (int piece = 0; piece < kPieces; ++piece) {
      const int place = TileOffset<kHeadDim>(row, piece);
      EXPECT_EQ(place % 16, 0);
      EXPECT_LT(place, kTileTokens * kHeadDim * 2);
      EXPECT_TRUE(places.insert(place).second);
    }
  }
  // ldmatrix reads the same piece of 8 rows.
  for (int first = 0; first < kTileTokens; first += 8) {
    for (int piece = 0; piece < kPieces; ++piece) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(TileOffset<kHeadDim>(row, piece) % kBankRow);
      EXPECT_EQ(banks.size(), 8u) << "row " << first << ", piece " << piece;
    }
  }
  // Copies: consecutive threads write consecutive pieces, row by row.
  for (int thread = 0; thread < kTileTokens * kPieces; thread += 8) {
    std::set<int> banks;
    for (int i = thread; i < thread + 8; ++i) {
      banks.insert(TileOffset<kHeadDim>(i / kPieces, i % kPieces) % kBankRow);
    }
    EXPECT_EQ(banks.size(), 8u) << "thread " << thread;
  }
}

TEST(AttentionTile, HasNoBankConflicts) {
  CheckTile<16>();
  CheckTile<32>();
  CheckTile<64>();
  CheckTile<128>();
}

TEST(AttentionTile, ScoresHaveNoBankConflicts) {
  constexpr int kStride = AttentionShared<128, false>::kScoreStride;
  for (int half_warp = 0; half_warp < 2; ++half_warp) {
    std::set<int> banks;
    for (int lane = 16 * half_warp; lane < 16 * half_warp + 16; ++lane) {
      const int word = lane / 4 * kStride + lane % 4 * 2;
      banks.insert(word % 32);
      banks.insert((word + 1) % 32);
    }
    EXPECT_EQ(banks.size(), 32u);
  }
}

// An H200 has 228 KB of shared memory per multiprocessor; every block takes 1 KB more than it requests.
template <int kHeadDim>
constexpr bool kTwoBlocksFit = 2 * (AttentionShared<kHeadDim, false>::kBytes + 1024) <= 228 * 1024 &&
                               2 * (AttentionShared<kHeadDim, true>::kBytes + 1024) <= 228 * 1024;
static_assert(kTwoBlocksFit<16> && kTwoBlocksFit<32> && kTwoBlocksFit<64> && kTwoBlocksFit<128>);

// With two stages: a block on sm_86 and sm_89 has at most 99 KB, a multiprocessor of sm_80 has 164 KB.
template <bool kLong>
constexpr int kTwoStages = AttentionShared<128, kLong, 2>::kBytes;
static_assert(kTwoStages<true> <= 99 * 1024 && kTwoStages<false> <= 99 * 1024);
static_assert(2 * (kTwoStages<true> + 1024) <= 164 * 1024 && 2 * (kTwoStages<false> + 1024) <= 164 * 1024);
static_assert(AttentionShared<64, true>::kBytes <= 99 * 1024);

}  // namespace
}  // namespace bfio::worker::gpu
