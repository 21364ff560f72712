// Converts elements of a checkpoint's tensors to numbers, and rounds to bf16. Used by engines that store
// weights in another type than the file's. Threads: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "worker/engine/model/safetensors.h"

namespace bfio::worker {

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t ToBf16(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromBf16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Exact conversion.
inline float FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return __builtin_bit_cast(float, sign | wide << 23 | mantissa << 13);
}

// REQUIRES: tensor.present(), 0 <= i < tensor.elements().
inline float ElementAt(const TensorView& tensor, int64_t i) {
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, tensor.data + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, tensor.data + 2 * i, 2);
  return tensor.dtype == DType::kBF16 ? FromBf16(bits) : FromF16(bits);
}

}  // namespace bfio::worker
