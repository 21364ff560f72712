#include "tools/checkpoint/random_tensor.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace bfio::checkpoint {
namespace {

using worker::DType;

// The FNV-1a hash of `name`.
uint64_t HashOf(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void Store(float value, DType dtype, char* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? RoundToBF16(value) : RoundToF16(value);
  std::memcpy(to, &half, sizeof(half));
}

}  // namespace

RandomTensor::RandomTensor(uint64_t seed, absl::string_view name, Spread spread)
    : rng_(Rng(seed).Fork(HashOf(name))), spread_(spread) {}

void RandomTensor::Append(int64_t count, DType dtype, std::string& bytes) {
  const int64_t size = SizeOf(dtype);
  const size_t begin = bytes.size();
  bytes.resize(begin + count * size);
  char* const to = bytes.data() + begin;
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    // One draw has the bits of two values.
    bits = i % 2 == 0 ? rng_.Next() : bits >> 32;
    const double unit = static_cast<int32_t>(static_cast<uint32_t>(bits)) * 0x1.0p-31;
    Store(static_cast<float>(spread_.center + unit * spread_.half_width), dtype, to + i * size);
  }
}

uint16_t RoundToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t RoundToF16(float value) {
  const uint16_t sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 & 0x8000);
  const float size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  // Halfway from the largest float16 value, 65504, to the value that would follow it.
  if (size >= 65520.0f) return sign | 0x7c00;
  // Below 2^-14 the values of float16 are 2^-24 apart. Floats near 0.5 are 2^-24 apart too, so adding 0.5
  // rounds.
  if (size < 0x1.0p-14f) return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(size + 0.5f));
  // The mantissa loses 13 bits, and the bias of the exponent changes from 127 to 15.
  const uint32_t bits = std::bit_cast<uint32_t>(size) - (uint32_t{112} << 23);
  return sign | static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

}  // namespace bfio::checkpoint
