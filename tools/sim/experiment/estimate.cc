#include "tools/sim/experiment/estimate.h"

#include <cmath>
#include <vector>

namespace bfio::sim {

double StudentT975(int64_t degrees) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                               2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(kTable) / sizeof(kTable[0]));
  if (degrees <= kSize) return kTable[degrees - 1];
  // Cornish-Fisher around the normal quantile; within 0.001 from here on.
  const double z = 1.959964, n = static_cast<double>(degrees);
  return z + (z * z * z + z) / (4 * n);
}

Estimate EstimateMean(absl::Span<const double> samples) {
  Estimate result;
  result.samples = static_cast<int64_t>(samples.size());
  if (samples.empty()) return result;
  const double n = static_cast<double>(samples.size());
  for (double sample : samples) result.mean += sample / n;
  if (samples.size() < 2) return result;
  double squares = 0;
  for (double sample : samples) squares += (sample - result.mean) * (sample - result.mean);
  result.standard_deviation = std::sqrt(squares / (n - 1));
  result.half_width = StudentT975(result.samples - 1) * result.standard_deviation / std::sqrt(n);
  return result;
}

Estimate EstimateRatio(absl::Span<const double> samples, absl::Span<const double> base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < samples.size(); ++i) ratios.push_back(samples[i] / base[i]);
  return EstimateMean(ratios);
}

Estimate LogLogSlope(absl::Span<const double> x, absl::Span<const double> y) {
  const double n = static_cast<double>(x.size());
  double mean_x = 0, mean_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    mean_x += std::log(x[i]) / n;
    mean_y += std::log(y[i]) / n;
  }
  double xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double dx = std::log(x[i]) - mean_x;
    xx += dx * dx;
    xy += dx * (std::log(y[i]) - mean_y);
  }
  Estimate slope;
  slope.samples = static_cast<int64_t>(x.size());
  slope.mean = xy / xx;
  if (x.size() < 3) return slope;
  double residuals = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double off = std::log(y[i]) - mean_y - slope.mean * (std::log(x[i]) - mean_x);
    residuals += off * off;
  }
  slope.standard_deviation = std::sqrt(residuals / (n - 2) / xx);
  slope.half_width = StudentT975(slope.samples - 2) * slope.standard_deviation;
  return slope;
}

}  // namespace bfio::sim
