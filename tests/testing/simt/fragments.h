// The warp-wide matrix instructions, element by element, with the fragment layouts of the PTX manual ("Matrix
// fragments for mma.m16n8k16", "ldmatrix").
//
// With g = lane / 4 and t = lane % 4, and two bf16 to a register, lower column first:
//   A 16x16: a[0] row g,   columns 2t, 2t+1;     a[1] row g+8, the same columns;
//            a[2] row g,   columns 2t+8, 2t+9;   a[3] row g+8, the same columns
//   B 16x8:  b[0] rows 2t, 2t+1 of column g;     b[1] rows 2t+8, 2t+9
//   C 16x8:  d[0], d[1] row g, columns 2t, 2t+1; d[2], d[3] row g+8
//   ldmatrix: register i holds elements 2t, 2t+1 of row g of matrix i; transposed: of column g.
#pragma once

#include <cstdint>
#include <cstring>

#include "simt/machine.h"

namespace simt {

// Arguments of one lane of ldmatrix.x4: the address of row lane % 8 of matrix lane / 8, and its registers.
struct LoadMatrices {
  const void* row;
  uint32_t* registers;

  static void Run(void* const* lanes) { Load(lanes, false); }
  static void RunTransposed(void* const* lanes) { Load(lanes, true); }
  static void Load(void* const* lanes, bool transposed);
};

// Arguments of one lane of mma.sync.m16n8k16: its fragments; the product is added to d. Sums are computed in
// fp32 in ascending order of k.
struct MultiplyAdd {
  float* d;
  const uint32_t* a;
  uint32_t b[2];

  static void Run(void* const* lanes);
};

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void LoadMatrices::Load(void* const* lanes, bool transposed) {
  uint16_t element[4][8][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    std::memcpy(element[lane / 8][lane % 8], static_cast<LoadMatrices*>(lanes[lane])->row, 16);
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    uint32_t* registers = static_cast<LoadMatrices*>(lanes[lane])->registers;
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = transposed ? element[i][2 * t][g] : element[i][g][2 * t];
      const uint32_t high = transposed ? element[i][2 * t + 1][g] : element[i][g][2 * t + 1];
      registers[i] = low | high << 16;
    }
  }
}

inline void MultiplyAdd::Run(void* const* lanes) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& own = *static_cast<const MultiplyAdd*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][2 * t + i / 2 * 8] = FloatOf(own.a[i] << 16);
      a[g + i % 2 * 8][2 * t + i / 2 * 8 + 1] = FloatOf(own.a[i] & 0xffff0000u);
      c[g + i / 2 * 8][2 * t + i % 2] = own.d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + i * 8][g] = FloatOf(own.b[i] << 16);
      b[2 * t + i * 8 + 1][g] = FloatOf(own.b[i] & 0xffff0000u);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& own = *static_cast<const MultiplyAdd*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) own.d[i] = c[g + i / 2 * 8][2 * t + i % 2];
  }
}

}  // namespace simt
