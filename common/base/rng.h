// A small seeded random stream. Every random choice in bfio comes from an Rng that the caller passes, so that
// a run is reproducible from its seed on any machine (the standard library's distributions differ between
// implementations; these do not). Threads: an Rng belongs to one thread. Cost: a few nanoseconds per draw.
// Not for secrets.
#pragma once

#include <cmath>
#include <cstdint>

namespace bfio {

// One round of SplitMix64 (Steele, Lea and Flood, 2014): a bijective mix, sufficient to derive seeds and
// hashes.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(Mix64(seed)) {}

  // An independent stream of the same seed, identified by `stream`: adding a stream does not change the
  // others.
  Rng Fork(uint64_t stream) const { return Rng(state_ ^ Mix64(stream + 1)); }

  uint64_t Next() { return Mix64(state_ += 0x9e3779b97f4a7c15u); }

  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  // Uniform in [0, n). REQUIRES: n > 0. The bias is below n / 2^64.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }

  // Exponential with mean 1.
  double Exponential() { return -std::log1p(-Uniform()); }

  // Normal with mean 0 and variance 1 (Box-Muller, whose second value is discarded).
  double Normal() {
    const double r = std::sqrt(2 * Exponential());
    return r * std::cos(6.283185307179586 * Uniform());
  }

  // Gamma with the given shape and mean `shape` (Marsaglia and Tsang, 2000). REQUIRES: shape > 0.
  double Gamma(double shape) {
    if (shape < 1) return Gamma(shape + 1) * std::pow(1 - Uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = Normal(), v = 1 + c * x;
      if (v <= 0) continue;
      const double v3 = v * v * v;
      if (std::log1p(-Uniform()) < 0.5 * x * x + d - d * v3 + d * std::log(v3)) return d * v3;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace bfio
