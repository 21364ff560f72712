// Vectors of 16 floats, and exp. Part of kernels_body.h, which limits what it may include; compiled once per
// instruction set. A vector has 16 lanes in every version: one register of AVX-512, two of AVX2, four of
// SSE2. So all versions sum in the same order.
#include <cstdint>

#include "worker/engine/cpu/kernels.h"

namespace bfio::worker::cpu {
namespace {

#define BFIO_INLINE inline __attribute__((always_inline))

constexpr int kRegisterLanes = BFIO_REGISTER_BYTES / 4;
constexpr int kRegisters = kLanes / kRegisterLanes;

typedef float F __attribute__((vector_size(BFIO_REGISTER_BYTES)));
typedef int32_t I __attribute__((vector_size(BFIO_REGISTER_BYTES)));
typedef uint32_t U __attribute__((vector_size(BFIO_REGISTER_BYTES)));
typedef float F4 __attribute__((vector_size(16)));
// Types for unaligned access to memory.
typedef float Fm __attribute__((vector_size(BFIO_REGISTER_BYTES), aligned(4), may_alias));
typedef float F4m __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint16_t Hm __attribute__((vector_size(BFIO_REGISTER_BYTES / 2), aligned(2), may_alias));

struct Bf16 {
  uint16_t bits;
};

// 16 floats, registers in the order of lanes.
struct V {
  F part[kRegisters];
};

// Loads the address into the second-level cache; harmless where there is no memory.
BFIO_INLINE void Prefetch(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
}

// Applies `f` register by register.
template <typename Function, typename... Vs>
BFIO_INLINE V Map(const Function& f, const Vs&... vectors) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) result.part[i] = f(vectors.part[i]...);
  return result;
}
#define BFIO_LAMBDA(...) [=](__VA_ARGS__) __attribute__((always_inline))

BFIO_INLINE V Set(float value) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) result.part[i] = F{} + value;
  return result;
}
BFIO_INLINE V operator+(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x + y; }, a, b);
}
BFIO_INLINE V operator-(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x - y; }, a, b);
}
BFIO_INLINE V operator*(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x * y; }, a, b);
}
BFIO_INLINE V operator/(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x / y; }, a, b);
}
// a * b + c, fused where the processor can.
BFIO_INLINE V MulAdd(const V& a, const V& b, const V& c) {
  return Map(
      BFIO_LAMBDA(F x, F y, F z) { return x * y + z; }, a, b, c);
}
BFIO_INLINE V Max(const V& a, const V& b) {
  return Map(
      BFIO_LAMBDA(F x, F y) { return x > y ? x : y; }, a, b);
}

BFIO_INLINE V Load(const float* p) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) result.part[i] = *reinterpret_cast<const Fm*>(p + i * kRegisterLanes);
  return result;
}
BFIO_INLINE V Load(const Bf16* p) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    const U wide = __builtin_convertvector(*reinterpret_cast<const Hm*>(p + i * kRegisterLanes), U);
    result.part[i] = reinterpret_cast<F>(wide << 16);
  }
  return result;
}
BFIO_INLINE void Store(float* p, const V& v) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) *reinterpret_cast<Fm*>(p + i * kRegisterLanes) = v.part[i];
}
// The first n lanes, zeros after them. REQUIRES: n < 16.
template <typename T>
BFIO_INLINE V LoadTail(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}

// Folds 16 lanes to 4, lane i with i + 8 and then with i + 4, by `f`.
// A template in V, so that only the branch for this version's registers is compiled.
template <typename Vector, typename Function>
BFIO_INLINE F4 Fold(const Vector& v, const Function& f) {
  if constexpr (kRegisters == 1) {
    const auto x = v.part[0];
    const auto y = f(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
    return f(__builtin_shufflevector(y, y, 0, 1, 2, 3), __builtin_shufflevector(y, y, 4, 5, 6, 7));
  } else if constexpr (kRegisters == 2) {
    const auto y = f(v.part[0], v.part[1]);
    return f(__builtin_shufflevector(y, y, 0, 1, 2, 3), __builtin_shufflevector(y, y, 4, 5, 6, 7));
  } else {
    return f(f(v.part[0], v.part[2]), f(v.part[1], v.part[3]));
  }
}
BFIO_INLINE float Sum(const V& v) {
  const F4 s = Fold(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
  return (s[0] + s[2]) + (s[1] + s[3]);
}
// Four sums at once, each added up as Sum does.
BFIO_INLINE F4 Sum4(const V& a, const V& b, const V& c, const V& d) {
  const auto add = [](auto x, auto y) __attribute__((always_inline)) {
    return x + y;
  };
  const F4 fa = Fold(a, add), fb = Fold(b, add), fc = Fold(c, add), fd = Fold(d, add);
  const F4 ab = __builtin_shufflevector(fa, fb, 0, 4, 1, 5) + __builtin_shufflevector(fa, fb, 2, 6, 3, 7);
  const F4 cd = __builtin_shufflevector(fc, fd, 0, 4, 1, 5) + __builtin_shufflevector(fc, fd, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}
BFIO_INLINE float Largest(const V& v) {
  const F4 m = Fold(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
  const float x = m[0] > m[2] ? m[0] : m[2], y = m[1] > m[3] ? m[1] : m[3];
  return x > y ? x : y;
}

// exp(x), to about 2 units in the last place; 0 below -87.3, exp(88.3) above 88.3. Range reduction and
// polynomial of the Cephes library's expf.
BFIO_INLINE F ExpRegister(F x) {
  const F low = F{} - 87.3365447f, high = F{} + 88.3762626f;
  const I vanishes = x < low;
  F r = x < low ? low : x;
  r = r > high ? high : r;
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const F shifted = r * 1.44269504088896341f + 12582912.0f;
  const F n = shifted - 12582912.0f;
  r = r - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const I exponent = (reinterpret_cast<I>(shifted) - 0x4B400000 + 127) << 23;
  const F y = p * reinterpret_cast<F>(exponent);
  return vanishes ? F{} : y;
}
BFIO_INLINE V Exp(const V& x) {
  return Map(
      BFIO_LAMBDA(F part) { return ExpRegister(part); }, x);
}
// x where lane + begin <= last, -infinity elsewhere.
BFIO_INLINE V MaskAfter(const V& x, int32_t begin, int32_t last) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    I token;
#pragma GCC unroll 16
    for (int lane = 0; lane < kRegisterLanes; ++lane) token[lane] = lane;
    token = token + (begin + i * kRegisterLanes);
    result.part[i] = token <= I{} + last ? x.part[i] : F{} - __builtin_inff();
  }
  return result;
}

}  // namespace
}  // namespace bfio::worker::cpu
