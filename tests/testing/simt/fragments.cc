#include "simt/fragments.h"

#include <cstring>

namespace simt {
namespace {

constexpr int kLanes = 32;

float LowerHalf(uint32_t pair) {
  const uint32_t bits = pair << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float UpperHalf(uint32_t pair) {
  const uint32_t bits = pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void Load(void* const* lanes, bool transposed) {
  uint16_t element[4][8][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    std::memcpy(element[lane / 8][lane % 8], static_cast<LoadMatrices*>(lanes[lane])->row, 16);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    uint32_t* registers = static_cast<LoadMatrices*>(lanes[lane])->registers;
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = transposed ? element[i][2 * t][g] : element[i][g][2 * t];
      const uint32_t high = transposed ? element[i][2 * t + 1][g] : element[i][g][2 * t + 1];
      registers[i] = low | high << 16;
    }
  }
}

}  // namespace

void LoadMatrices::Run(void* const* lanes) {
  Load(lanes, false);
}
void LoadMatrices::RunTransposed(void* const* lanes) {
  Load(lanes, true);
}

void MultiplyAdd::Run(void* const* lanes) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<const MultiplyAdd*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][2 * t + i / 2 * 8] = LowerHalf(own.a[i]);
      a[g + i % 2 * 8][2 * t + i / 2 * 8 + 1] = UpperHalf(own.a[i]);
      c[g + i / 2 * 8][2 * t + i % 2] = own.d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + i * 8][g] = LowerHalf(own.b[i]);
      b[2 * t + i * 8 + 1][g] = UpperHalf(own.b[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<const MultiplyAdd*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) own.d[i] = c[g + i / 2 * 8][2 * t + i % 2];
  }
}

}  // namespace simt
