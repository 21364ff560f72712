// Sums and products that saturate at the largest number instead of wrapping. For sizes computed from
// configured or received numbers, before they are compared with a limit. Threads: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>

namespace bfio {

// REQUIRES: no factor is negative.
inline int64_t SaturatedProduct(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;
    if (__builtin_mul_overflow(product, factor, &product)) product = std::numeric_limits<int64_t>::max();
  }
  return product;
}

// REQUIRES: neither is negative.
inline int64_t SaturatedSum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace bfio
