// Weighted means and co-moments of some quantities, one observation at a time. The data of a regression,
// without storing the observations and without the cancellation of plain sums: loads of a million tokens that
// vary by a thousand keep their digits (West, 1979). Pure. Any thread.
#pragma once

#include <array>
#include <cstddef>

namespace bfio {

template <size_t kQuantities>
struct BasicMoments {
  using Vector = std::array<double, kQuantities>;

  double weight = 0;
  Vector mean = {};
  // Sum of w (x_i - mean_i) (x_j - mean_j).
  std::array<Vector, kQuantities> co = {};

  // REQUIRES: w >= 0.
  void Add(const Vector& x, double w) {
    if (w <= 0) return;
    const double before = weight;
    weight += w;
    const double share = w / weight;
    Vector d;
    for (size_t i = 0; i < kQuantities; ++i) d[i] = x[i] - mean[i];
    for (size_t i = 0; i < kQuantities; ++i) {
      mean[i] += share * d[i];
      for (size_t j = 0; j < kQuantities; ++j) co[i][j] += share * before * d[i] * d[j];
    }
  }

  // Multiplies every weight by `factor`.
  void Scale(double factor) {
    weight *= factor;
    for (Vector& row : co) {
      for (double& v : row) v *= factor;
    }
  }

  // Sum of w (x_i - at_i) (x_j - at_j).
  double About(const Vector& at, size_t i, size_t j) const {
    return co[i][j] + weight * (mean[i] - at[i]) * (mean[j] - at[j]);
  }
};

using Moments = BasicMoments<3>;

}  // namespace bfio
