// A mean over seeds and how far it can be trusted.
//
// Purpose: every figure of an experiment is one of these. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_ESTIMATE_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_ESTIMATE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace bfio::sim {

struct Estimate {
  int64_t samples = 0;
  double mean = 0;
  // Of the samples, with n - 1; 0 for fewer than two.
  double standard_deviation = 0;
  // Half the width of the 95 % confidence interval of the mean, by Student's t; 0 for fewer than two.
  double half_width = 0;

  double low() const { return mean - half_width; }
  double high() const { return mean + half_width; }
};

Estimate EstimateMean(absl::Span<const double> samples);

// The mean of samples[i] / base[i]: seeds are paired, so what they share falls out. REQUIRES: equal sizes.
Estimate EstimateRatio(absl::Span<const double> samples, absl::Span<const double> base);

// The quantile of Student's t at 97.5 % with so many degrees of freedom. REQUIRES: degrees >= 1.
double StudentT975(int64_t degrees);

// Slope of log(y) on log(x) by least squares, and its 95 % half-width. REQUIRES: equal sizes, at least two
// different x, all positive.
Estimate LogLogSlope(absl::Span<const double> x, absl::Span<const double> y);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_ESTIMATE_H_
