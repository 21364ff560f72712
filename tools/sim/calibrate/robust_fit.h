// A straight line through many points of which some are nonsense.
//
// Purpose: y = b0 + b1 x1 + .. by an M-estimator: least absolute deviations to begin with, so that a few wild
// points do not decide where the others are looked for, then Tukey's bisquare (c = 4.685: 95 % of least
// squares' efficiency on normal noise) on the scale of the median absolute deviation. Points beyond count
// nothing and are counted. Standard errors are the sandwich's, which holds where the noise grows with y too
// (Huber and Ronchetti, Robust Statistics, 7.6). Pure. Any thread.
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
  // Of the residuals: 1.4826 times their median absolute deviation.
  double scale = 0;
  // Of what counts, by its weights.
  double r_squared = 0;
  // Points without any weight.
  int64_t outliers = 0;
  // Of the columns, each scaled to unit spread: 1 where they have nothing to do with each other, infinite
  // where one follows from the others.
  double condition = 1;
  // By point: y - fit.
  std::vector<double> residuals;
};

// `columns[j][i]` belongs to `y[i]`. REQUIRES: columns as long as y. INVALID_ARGUMENT with fewer points than
// three per coefficient, or when a column is constant or follows from the others.
absl::StatusOr<RobustFit> FitRobustly(const std::vector<std::vector<double>>& columns,
                                      const std::vector<double>& y);

// The value below which a share q of them lies; 0 of none. Reorders.
double QuantileOf(std::vector<double>& values, double q);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_ROBUST_FIT_H_
