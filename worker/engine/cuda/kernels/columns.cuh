// Columns of a row as fp32: eight at a time where 16-byte accesses are possible, otherwise one.
#pragma once

#include "worker/engine/cuda/kernels/device.h"

namespace bfio::worker::gpu {

// N: 8, aligned to 16 bytes, or 1.
template <int N>
struct Columns {
  float at[N];
};

template <int N>
BFIO_DEVICE Columns<N> LoadColumns(const Bf16* from) {
  if constexpr (N == 8) {
    const Words4 w = Load16(from);
    return {{LowFloat(w.x), HighFloat(w.x), LowFloat(w.y), HighFloat(w.y), LowFloat(w.z), HighFloat(w.z),
             LowFloat(w.w), HighFloat(w.w)}};
  } else {
    return {{ToFloat(*from)}};
  }
}

template <int N>
BFIO_DEVICE Columns<N> LoadColumns(const float* from) {
  if constexpr (N == 8) {
    const Words4 a = Load16(from), b = Load16(from + 4);
    return {{BitsFloat(a.x), BitsFloat(a.y), BitsFloat(a.z), BitsFloat(a.w), BitsFloat(b.x), BitsFloat(b.y),
             BitsFloat(b.z), BitsFloat(b.w)}};
  } else {
    return {{*from}};
  }
}

template <int N>
BFIO_DEVICE void StoreColumns(Bf16* to, const Columns<N>& c) {
  if constexpr (N == 8) {
    Store16(to, {PackBf16(c.at[0], c.at[1]), PackBf16(c.at[2], c.at[3]), PackBf16(c.at[4], c.at[5]),
                 PackBf16(c.at[6], c.at[7])});
  } else {
    *to = ToBf16(c.at[0]);
  }
}

template <int N>
BFIO_DEVICE void StoreColumns(float* to, const Columns<N>& c) {
  if constexpr (N == 8) {
    Store16(to, {FloatBits(c.at[0]), FloatBits(c.at[1]), FloatBits(c.at[2]), FloatBits(c.at[3])});
    Store16(to + 4, {FloatBits(c.at[4]), FloatBits(c.at[5]), FloatBits(c.at[6]), FloatBits(c.at[7])});
  } else {
    *to = c.at[0];
  }
}

// a += b
template <int N>
BFIO_DEVICE void AddColumns(Columns<N>& a, const Columns<N>& b) {
  BFIO_UNROLL
  for (int i = 0; i < N; ++i) a.at[i] += b.at[i];
}

// The sum over all lanes; every lane gets it.
BFIO_DEVICE float WarpSum(float value) {
  BFIO_UNROLL
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}

}  // namespace bfio::worker::gpu
