// A linear fit through many points of which some are outliers. Y = b0 + b1 x1 + .. by an M-estimator. It
// starts with least absolute deviations, so that a few outliers do not determine where the fit converges.
// Then it uses Tukey's bisquare (c = 4.685: 95 % of least squares' efficiency on normal noise) on the scale
// of the median absolute deviation. Points beyond have no weight and are counted. Standard errors are those
// of the sandwich estimator, which holds when the noise grows with y, too (Huber and Ronchetti, Robust
// Statistics, 7.6). Pure. Any thread.
#ifndef BFIO_TOOLS_SIM_CALIBRATE_ROBUST_FIT_H_
#define BFIO_TOOLS_SIM_CALIBRATE_ROBUST_FIT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace bfio::sim {

struct RobustFit {
  // The constant first, then one per column.
  std::vector<double> coefficients;
  std::vector<double> standard_errors;
  // Scale of the residuals: 1.4826 times their median absolute deviation.
  double scale = 0;
  // Weighted by the points' weights.
  double r_squared = 0;
  // Points without any weight.
  int64_t outliers = 0;
  // Condition number of the columns, each scaled to unit spread: 1 where they are uncorrelated, infinite
  // where one is a linear combination of the others.
  double condition = 1;
  // By point: y - fit.
  std::vector<double> residuals;
};

// `columns[j][i]` belongs to `y[i]`. REQUIRES: columns as long as y. INVALID_ARGUMENT with fewer points than
// three per coefficient, or when a column is constant or a linear combination of the others.
absl::StatusOr<RobustFit> FitRobustly(const std::vector<std::vector<double>>& columns,
                                      const std::vector<double>& y);

// The value below which a share q of the values lies; 0 when empty. Reorders `values`.
double QuantileOf(std::vector<double>& values, double q);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_ROBUST_FIT_H_
