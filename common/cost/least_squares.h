// Weighted least squares of a quantity by others, from their moments: t = c + sum of slopes * x, without
// negative slopes or a negative c. The last quantity of the moments is t, the others are the terms. A term
// that is nearly a sum of those before it is left out. Pure. Any thread. Cost: at most 2^terms eliminations.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "common/cost/moments.h"

namespace bfio {

// A set of terms is the sum of their bits.
constexpr unsigned TermBit(size_t term) {
  return 1U << term;
}

// A coefficient is determined only if at least this share of its sum of squares is independent of the other
// terms.
inline constexpr double kMinRest = 1e-3;

template <size_t kTerms>
struct Line {
  double c = 0;
  // By term; 0 for those that are left out.
  std::array<double, kTerms> slopes = {};
  // Sum of squared residuals.
  double rest = 0;

  double At(const std::array<double, kTerms + 1>& x) const {
    double t = c;
    for (size_t i = 0; i < kTerms; ++i) t += slopes[i] * x[i];
    return t;
  }
};

// The same as moments of a line through `at`.
template <size_t kQuantities>
BasicMoments<kQuantities> MomentsAbout(const BasicMoments<kQuantities>& m,
                                       const std::array<double, kQuantities>& at) {
  BasicMoments<kQuantities> moments;
  moments.weight = m.weight;
  moments.mean = at;
  for (size_t i = 0; i < kQuantities; ++i) {
    for (size_t j = 0; j < kQuantities; ++j) moments.co[i][j] = m.About(at, i, j);
  }
  return moments;
}

// Slopes of any sign. Without term 0 among the terms, its slope is `least`.
template <size_t kQuantities>
Line<kQuantities - 1> SolveLine(const BasicMoments<kQuantities>& m, unsigned terms, double least) {
  constexpr size_t kTerms = kQuantities - 1;
  const double given = (terms & TermBit(0)) != 0 ? 0 : least;
  const auto with_time = [&](size_t i) { return m.co[i][kTerms] - given * m.co[i][0]; };
  // Gaussian elimination of the normal equations, symmetric and positive.
  std::array<std::array<double, kTerms + 1>, kTerms> rows;
  for (size_t i = 0; i < kTerms; ++i) {
    std::copy_n(m.co[i].begin(), kTerms, rows[i].begin());
    rows[i][kTerms] = with_time(i);
  }
  for (size_t i = 0; i < kTerms; ++i) {
    if (!(rows[i][i] > kMinRest * m.co[i][i])) terms &= ~TermBit(i);
    if ((terms & TermBit(i)) == 0) continue;
    for (size_t below = i + 1; below < kTerms; ++below) {
      const double share = rows[below][i] / rows[i][i];
      for (size_t j = i; j <= kTerms; ++j) rows[below][j] -= share * rows[i][j];
    }
  }
  Line<kTerms> line;
  line.rest = with_time(kTerms) - given * with_time(0);
  line.c = m.mean[kTerms] - given * m.mean[0];
  for (size_t i = kTerms; i-- > 0;) {
    if ((terms & TermBit(i)) == 0) continue;
    double sum = rows[i][kTerms];
    for (size_t j = i + 1; j < kTerms; ++j) sum -= rows[i][j] * line.slopes[j];
    line.slopes[i] = sum / rows[i][i];
    line.rest -= line.slopes[i] * with_time(i);
    line.c -= line.slopes[i] * m.mean[i];
  }
  line.rest = std::max(0.0, line.rest);
  line.slopes[0] += given;
  // A negative constant is not possible: the best line through the origin instead.
  return line.c < 0 ? SolveLine(MomentsAbout(m, {}), terms, least) : line;
}

// No slope is negative, and that of term 0 is at least `least`: at the optimum, one of the terms that violate
// this without the bounds is at its bound.
template <size_t kQuantities>
Line<kQuantities - 1> FitLine(const BasicMoments<kQuantities>& m, unsigned terms, double least = 0) {
  const Line<kQuantities - 1> line = SolveLine(m, terms, least);
  std::optional<Line<kQuantities - 1>> best;
  for (size_t i = 0; i + 1 < kQuantities; ++i) {
    if ((terms & TermBit(i)) == 0 || line.slopes[i] >= (i == 0 ? least : 0)) continue;
    const Line<kQuantities - 1> other = FitLine(m, terms & ~TermBit(i), least);
    if (!best || other.rest < best->rest) best = other;
  }
  return best.value_or(line);
}

}  // namespace bfio
