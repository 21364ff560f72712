// The source of the kernels, compiled once per instruction set: kernels_avx512.cc, kernels_avx2.cc and
// kernels_generic.cc include it with different compiler options, BFIO_REGISTER_BYTES, BFIO_TILE_ROWS and
// BFIO_TILE_COLUMNS. This file and those it includes may include only kernels.h and fixed-width integers: an
// inline function of the standard library, compiled here for AVX-512 and merged by the linker with copies
// from elsewhere, would crash older processors. Threads: a kernel accesses only memory that its arguments
// name.
#include <cstdint>

#include "worker/engine/cpu/kernels.h"
// The order matters.
// clang-format off
#include "worker/engine/cpu/kernels_vector.h"
#include "worker/engine/cpu/kernels_linear.h"
#include "worker/engine/cpu/kernels_attention.h"
// clang-format on

namespace bfio::worker::cpu {
namespace {

void RmsNorm(const float* x, const float* weight, float* y, int64_t n, float epsilon) {
  V squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = Load(x + i);
    squares = MulAdd(v, v, squares);
  }
  if (i < n) {
    const V v = LoadTail(x + i, n - i);
    squares = MulAdd(v, v, squares);
  }
  const float inverse = 1 / __builtin_sqrtf(Sum(squares) / static_cast<float>(n) + epsilon);
  for (i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
}

void SiluMul(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V g = Load(gate + i);
    Store(gate + i, g / (Exp(V{} - g) + Set(1)) * Load(up + i));
  }
  if (i < n) {
    const V g = LoadTail(gate + i, n - i);
    const V y = g / (Exp(V{} - g) + Set(1)) * LoadTail(up + i, n - i);
    float lanes[kLanes];
    Store(lanes, y);
    for (int64_t lane = 0; i + lane < n; ++lane) gate[i + lane] = lanes[lane];
  }
}

}  // namespace

extern const Kernels BFIO_KERNELS;
const Kernels BFIO_KERNELS = {
    BFIO_KERNELS_NAME, LinearOf<float>, LinearOf<Bf16>, Attend, RmsNorm, SiluMul,
};

}  // namespace bfio::worker::cpu
