#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "Eigen/Dense"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tools/sim/calibrate/calibration.h"

namespace bfio::sim {
namespace {

// Tukey's bisquare at 95 % efficiency; ratio of the normal standard deviation to the median absolute
// deviation.
constexpr double kCut = 4.685;
constexpr double kMadToSigma = 1.4826;
constexpr int kRounds = 50;
// Change of the coefficients between two rounds, relative to the largest.
constexpr double kConverged = 1e-10;
// A pivot below this share of the largest is a rounding error.
constexpr double kSingular = 1e-12;

using Eigen::ArrayXd;
using Eigen::MatrixXd;
using Eigen::VectorXd;

// One row per point: 1, then the columns scaled to mean 0 and standard deviation 1, so that columns of very
// different magnitude (seconds per token, seconds) do not cause rounding errors.
struct Design {
  MatrixXd x;
  // Converts coefficients of the scaled columns to those of the original columns.
  MatrixXd unscale;
};

absl::StatusOr<Design> MakeDesign(const std::vector<std::vector<double>>& columns, int64_t n) {
  const auto p = static_cast<int64_t>(columns.size()) + 1;
  Design design = {MatrixXd::Ones(n, p), MatrixXd::Identity(p, p)};
  for (int64_t j = 1; j < p; ++j) {
    const Eigen::Map<const ArrayXd> column(columns[static_cast<size_t>(j) - 1].data(), n);
    const double mean = column.mean(), spread = std::sqrt((column - mean).square().mean());
    if (!(spread > 1e-12 * std::abs(mean)) || spread == 0) {
      return absl::InvalidArgumentError(absl::StrCat("column ", j - 1, " does not vary"));
    }
    design.x.col(j) = (column - mean) / spread;
    design.unscale(j, j) = 1 / spread;
    design.unscale(0, j) = -mean / spread;
  }
  return design;
}

// Mean of w x x'.
MatrixXd Moments(const MatrixXd& x, const ArrayXd& w) {
  return x.transpose() * w.matrix().asDiagonal() * x / static_cast<double>(x.rows());
}

std::optional<MatrixXd> Inverse(const MatrixXd& m) {
  Eigen::FullPivLU<MatrixXd> lu(m);
  lu.setThreshold(kSingular);
  if (!m.allFinite() || !lu.isInvertible()) return std::nullopt;
  return lu.inverse();
}

// Weighted least squares; empty when the weights leave too few points.
std::optional<VectorXd> Solve(const MatrixXd& x, const ArrayXd& y, const ArrayXd& w) {
  const std::optional<MatrixXd> inverse = Inverse(Moments(x, w));
  if (!inverse.has_value()) return std::nullopt;
  return *inverse * (x.transpose() * (w * y).matrix()) / static_cast<double>(y.size());
}

double MedianOfAbsolute(const ArrayXd& values) {
  const ArrayXd absolute = values.abs();
  return QuantileOf({absolute.begin(), absolute.end()}, 0.5);
}

bool Close(const VectorXd& a, const VectorXd& b) {
  return (a - b).lpNorm<Eigen::Infinity>() <= kConverged * a.lpNorm<Eigen::Infinity>();
}

double Condition(const MatrixXd& correlations) {
  const VectorXd eigenvalues = Eigen::SelfAdjointEigenSolver<MatrixXd>(correlations).eigenvalues();
  const double least = eigenvalues(0), most = eigenvalues(eigenvalues.size() - 1);
  return least > 0 ? std::sqrt(most / least) : std::numeric_limits<double>::infinity();
}

// 1 - (r / (kCut scale))^2, 0 beyond: the square root of Tukey's weights.
ArrayXd Inside(const ArrayXd& residuals, double scale) {
  return (1 - (residuals / (kCut * scale)).square()).max(0);
}

// Covariance of the coefficients of the scaled columns.
std::optional<MatrixXd> Sandwich(const MatrixXd& x, const ArrayXd& residuals, double scale) {
  const ArrayXd inside = Inside(residuals, scale);
  // The derivative of psi.
  const ArrayXd slope = inside * (1 - 5 * (residuals / (kCut * scale)).square());
  const std::optional<MatrixXd> bread = Inverse(Moments(x, slope));
  if (!bread.has_value()) return std::nullopt;
  const MatrixXd meat = Moments(x, (inside.square() * residuals).square());
  return *bread * meat * *bread / static_cast<double>(residuals.size());
}

}  // namespace

double QuantileOf(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(std::clamp(q, 0.0, 1.0) * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(at), values.end());
  return values[at];
}

absl::StatusOr<RobustFit> FitRobustly(const std::vector<std::vector<double>>& columns,
                                      const std::vector<double>& values) {
  const auto n = static_cast<int64_t>(values.size()), p = static_cast<int64_t>(columns.size()) + 1;
  if (n < 3 * p) {
    return absl::InvalidArgumentError(absl::StrCat(n, " points are too few to fit ", p, " coefficients"));
  }
  BFIO_ASSIGN_OR_RETURN(const Design design, MakeDesign(columns, n));
  const MatrixXd& x = design.x;
  const Eigen::Map<const ArrayXd> y(values.data(), n);
  // Noise below a millionth of the measured values comes from the clock.
  const double floor = std::max(1e-6 * MedianOfAbsolute(y), std::numeric_limits<double>::min());
  const auto residuals_of = [&](const VectorXd& beta) -> ArrayXd { return y - (x * beta).array(); };
  const auto scale_of = [&](const ArrayXd& residuals) {
    return std::max(floor, kMadToSigma * MedianOfAbsolute(residuals));
  };

  RobustFit fit;
  fit.condition = Condition(Moments(x, ArrayXd::Ones(n)).bottomRightCorner(p - 1, p - 1));
  std::optional<VectorXd> beta = Solve(x, y, ArrayXd::Ones(n));
  if (!beta.has_value()) return absl::InvalidArgumentError("the columns are linearly dependent");
  const auto iterate = [&](const std::function<ArrayXd(const ArrayXd&)>& weights) {
    for (int round = 0; round < kRounds; ++round) {
      const std::optional<VectorXd> next = Solve(x, y, weights(residuals_of(*beta)));
      if (!next.has_value()) return false;
      const bool converged = Close(*next, *beta);
      *beta = *next;
      if (converged) break;
    }
    return true;
  };
  iterate([&](const ArrayXd& residuals) -> ArrayXd {  // least absolute deviations
    const double least = scale_of(residuals) * 1e-3;
    return least / residuals.abs().max(least);
  });
  fit.scale = scale_of(residuals_of(*beta));
  if (!iterate([&](const ArrayXd& residuals) -> ArrayXd { return Inside(residuals, fit.scale).square(); }))
    return absl::InvalidArgumentError("too many outliers for a fit");
  const ArrayXd residuals = residuals_of(*beta);
  const ArrayXd w = Inside(residuals, fit.scale).square();
  fit.outliers = (w == 0).count();
  const double mean = (w * y).sum() / w.sum(), total = (w * (y - mean).square()).sum();
  fit.r_squared = total > 0 ? 1 - (w * residuals.square()).sum() / total : 0;
  const VectorXd coefficients = design.unscale * *beta;
  VectorXd errors = VectorXd::Zero(p);
  if (const std::optional<MatrixXd> covariance = Sandwich(x, residuals, fit.scale); covariance.has_value()) {
    const MatrixXd unscaled = design.unscale * *covariance * design.unscale.transpose();
    errors = unscaled.diagonal().cwiseMax(0).cwiseSqrt();
  }
  fit.coefficients.assign(coefficients.begin(), coefficients.end());
  fit.standard_errors.assign(errors.begin(), errors.end());
  fit.residuals.assign(residuals.begin(), residuals.end());
  return fit;
}

}  // namespace bfio::sim
