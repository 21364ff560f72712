#include "tools/sim/calibrate/robust_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

// Tukey's bisquare at 95 % efficiency; the normal's standard deviation in median absolute deviations.
constexpr double kCut = 4.685;
constexpr double kMadToSigma = 1.4826;
constexpr int kRounds = 50;
// Of the coefficients, between two rounds, relative to the largest.
constexpr double kConverged = 1e-10;

using Matrix = std::vector<std::vector<double>>;

// The inverse by Gauss and Jordan; empty when there is none.
Matrix Inverse(Matrix a) {
  const size_t n = a.size();
  Matrix inverse(n, std::vector<double>(n, 0));
  for (size_t i = 0; i < n; ++i) inverse[i][i] = 1;
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    if (!(std::abs(a[pivot][k]) > 1e-12)) return {};
    std::swap(a[k], a[pivot]);
    std::swap(inverse[k], inverse[pivot]);
    const double by = 1 / a[k][k];
    for (size_t j = 0; j < n; ++j) {
      a[k][j] *= by;
      inverse[k][j] *= by;
    }
    for (size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double factor = a[i][k];
      for (size_t j = 0; j < n; ++j) {
        a[i][j] -= factor * a[k][j];
        inverse[i][j] -= factor * inverse[k][j];
      }
    }
  }
  return inverse;
}

// Columns with mean 0 and standard deviation 1, after a constant: what keeps seconds per token and seconds in
// one matrix apart from rounding.
struct Design {
  std::vector<double> mean, spread;
  Matrix rows;  // [i][0] = 1
};

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
  return sum;
}

// Sum of w x x'.
Matrix Moments(const Design& design, const std::vector<double>& w) {
  const size_t p = design.rows[0].size();
  Matrix m(p, std::vector<double>(p, 0));
  for (size_t i = 0; i < w.size(); ++i) {
    const std::vector<double>& x = design.rows[i];
    for (size_t j = 0; j < p; ++j) {
      for (size_t k = 0; k < p; ++k) m[j][k] += w[i] * x[j] * x[k];
    }
  }
  for (auto& row : m) {
    for (double& v : row) v /= static_cast<double>(w.size());
  }
  return m;
}

// Weighted least squares; empty when the weights leave nothing to tell.
std::vector<double> Solve(const Design& design, const std::vector<double>& y, const std::vector<double>& w) {
  const size_t p = design.rows[0].size();
  const Matrix inverse = Inverse(Moments(design, w));
  if (inverse.empty()) return {};
  std::vector<double> b(p, 0), beta(p, 0);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < p; ++j) b[j] += w[i] * design.rows[i][j] * y[i] / static_cast<double>(y.size());
  }
  for (size_t j = 0; j < p; ++j) beta[j] = Dot(inverse[j], b);
  return beta;
}

void SetResiduals(const Design& design, const std::vector<double>& y, const std::vector<double>& beta,
                  std::vector<double>& residuals) {
  for (size_t i = 0; i < y.size(); ++i) residuals[i] = y[i] - Dot(design.rows[i], beta);
}

double ScaleOf(const std::vector<double>& residuals, double floor) {
  std::vector<double> absolute(residuals.size());
  for (size_t i = 0; i < residuals.size(); ++i) absolute[i] = std::abs(residuals[i]);
  return std::max(floor, kMadToSigma * QuantileOf(absolute, 0.5));
}

bool Close(const std::vector<double>& a, const std::vector<double>& b) {
  double change = 0, size = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    change = std::max(change, std::abs(a[j] - b[j]));
    size = std::max(size, std::abs(a[j]));
  }
  return change <= kConverged * size;
}

double Condition(const Matrix& correlations) {
  // Two columns at most in practice: the eigenvalues are 1 + r and 1 - r.
  double most = 0;
  for (size_t j = 0; j < correlations.size(); ++j) {
    for (size_t k = 0; k < j; ++k) most = std::max(most, std::abs(correlations[j][k]));
  }
  return most >= 1 ? std::numeric_limits<double>::infinity() : std::sqrt((1 + most) / (1 - most));
}

absl::StatusOr<Design> MakeDesign(const std::vector<std::vector<double>>& columns, size_t n) {
  Design design;
  design.rows.assign(n, std::vector<double>(columns.size() + 1, 1));
  for (size_t j = 0; j < columns.size(); ++j) {
    double mean = 0, square = 0;
    for (const double x : columns[j]) mean += x / static_cast<double>(n);
    for (const double x : columns[j]) square += (x - mean) * (x - mean) / static_cast<double>(n);
    const double spread = std::sqrt(square);
    if (!(spread > 1e-12 * std::abs(mean)) || spread == 0) {
      return absl::InvalidArgumentError(absl::StrCat("column ", j, " does not vary"));
    }
    design.mean.push_back(mean);
    design.spread.push_back(spread);
    for (size_t i = 0; i < n; ++i) design.rows[i][j + 1] = (columns[j][i] - mean) / spread;
  }
  return design;
}

// Weights of Tukey's bisquare, and the derivative of its psi.
void Bisquare(const std::vector<double>& residuals, double scale, std::vector<double>& w,
              std::vector<double>* slope) {
  for (size_t i = 0; i < residuals.size(); ++i) {
    const double u = residuals[i] / (kCut * scale), inside = 1 - u * u;
    w[i] = inside > 0 ? inside * inside : 0;
    if (slope != nullptr) (*slope)[i] = inside > 0 ? inside * (1 - 5 * u * u) : 0;
  }
}

// Covariance of the coefficients on the scaled columns, by the sandwich.
Matrix Sandwich(const Design& design, const RobustFit& fit) {
  const size_t n = fit.residuals.size();
  std::vector<double> w(n), slope(n), squares(n);
  Bisquare(fit.residuals, fit.scale, w, &slope);
  for (size_t i = 0; i < n; ++i) squares[i] = w[i] * w[i] * fit.residuals[i] * fit.residuals[i];
  const Matrix bread = Inverse(Moments(design, slope)), meat = Moments(design, squares);
  if (bread.empty()) return {};
  const size_t p = bread.size();
  Matrix covariance(p, std::vector<double>(p, 0));
  for (size_t a = 0; a < p; ++a) {
    for (size_t b = 0; b < p; ++b) {
      for (size_t c = 0; c < p; ++c) covariance[a][b] += Dot(bread[a], meat[c]) * bread[c][b];
      covariance[a][b] /= static_cast<double>(n);
    }
  }
  return covariance;
}

// From the scaled columns to the given ones.
void Unscale(const Design& design, const std::vector<double>& beta, const Matrix& covariance,
             RobustFit& fit) {
  const size_t p = beta.size();
  fit.coefficients.assign(p, 0);
  fit.standard_errors.assign(p, 0);
  // The constant is beta0 - sum_j beta_j mean_j / spread_j.
  std::vector<double> constant(p, 1);
  for (size_t j = 1; j < p; ++j) {
    constant[j] = -design.mean[j - 1] / design.spread[j - 1];
    fit.coefficients[j] = beta[j] / design.spread[j - 1];
    if (!covariance.empty())
      fit.standard_errors[j] = std::sqrt(std::max(0.0, covariance[j][j])) / design.spread[j - 1];
  }
  fit.coefficients[0] = Dot(beta, constant);
  if (covariance.empty()) return;
  double variance = 0;
  for (size_t j = 0; j < p; ++j) variance += constant[j] * Dot(covariance[j], constant);
  fit.standard_errors[0] = std::sqrt(std::max(0.0, variance));
}

void SetQuality(const std::vector<double>& y, const std::vector<double>& w, RobustFit& fit) {
  double weight = 0, mean = 0, total = 0, rest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    weight += w[i];
    mean += w[i] * y[i];
    fit.outliers += w[i] == 0 ? 1 : 0;
  }
  mean /= weight;
  for (size_t i = 0; i < y.size(); ++i) {
    total += w[i] * (y[i] - mean) * (y[i] - mean);
    rest += w[i] * fit.residuals[i] * fit.residuals[i];
  }
  fit.r_squared = total > 0 ? 1 - rest / total : 0;
}

}  // namespace

double QuantileOf(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(std::clamp(q, 0.0, 1.0) * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(at), values.end());
  return values[at];
}

absl::StatusOr<RobustFit> FitRobustly(const std::vector<std::vector<double>>& columns,
                                      const std::vector<double>& y) {
  const size_t n = y.size(), p = columns.size() + 1;
  if (n < 3 * p) {
    return absl::InvalidArgumentError(absl::StrCat(n, " points do not tell ", p, " coefficients"));
  }
  absl::StatusOr<Design> design = MakeDesign(columns, n);
  if (!design.ok()) return design.status();
  std::vector<double> typical(y), w(n, 1);
  for (double& value : typical) value = std::abs(value);
  // Noise below a millionth of what is measured is the clock's.
  const double floor = std::max(1e-6 * QuantileOf(typical, 0.5), std::numeric_limits<double>::min());

  RobustFit fit;
  fit.residuals.assign(n, 0);
  Matrix correlations = Moments(*design, w);
  correlations.erase(correlations.begin());
  for (auto& row : correlations) row.erase(row.begin());
  fit.condition = Condition(correlations);
  std::vector<double> beta = Solve(*design, y, w);
  if (beta.empty()) return absl::InvalidArgumentError("a column follows from the others");
  for (int round = 0; round < kRounds; ++round) {  // least absolute deviations
    SetResiduals(*design, y, beta, fit.residuals);
    const double least = ScaleOf(fit.residuals, floor) * 1e-3;
    for (size_t i = 0; i < n; ++i) w[i] = least / std::max(std::abs(fit.residuals[i]), least);
    std::vector<double> next = Solve(*design, y, w);
    if (next.empty()) break;
    const bool done = Close(next, beta);
    beta = std::move(next);
    if (done) break;
  }
  SetResiduals(*design, y, beta, fit.residuals);
  fit.scale = ScaleOf(fit.residuals, floor);
  for (int round = 0; round < kRounds; ++round) {
    Bisquare(fit.residuals, fit.scale, w, nullptr);
    std::vector<double> next = Solve(*design, y, w);
    if (next.empty()) return absl::InvalidArgumentError("too few points agree with each other");
    const bool done = Close(next, beta);
    beta = std::move(next);
    SetResiduals(*design, y, beta, fit.residuals);
    if (done) break;
  }
  Bisquare(fit.residuals, fit.scale, w, nullptr);
  SetQuality(y, w, fit);
  Unscale(*design, beta, Sandwich(*design, fit), fit);
  return fit;
}

}  // namespace bfio::sim
