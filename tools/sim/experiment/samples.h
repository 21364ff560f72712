// Quantiles and moving means of what a tap collected.
//
// Purpose: what tables and charts of trajectories are made of. Threads: any, pure functions.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_SAMPLES_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_SAMPLES_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace bfio::sim {

// Linear between the two samples around rank q (n - 1); the median for q = 0.5. NaN without samples.
// REQUIRES: 0 <= q <= 1.
double QuantileOf(std::vector<double> samples, double q);

// The mean of each sample and the window - 1 before it; as many fewer values, none when there are too few
// samples. REQUIRES: window >= 1.
std::vector<double> MovingMean(absl::Span<const double> samples, size_t window);

// The first sample and every stride-th after it. REQUIRES: stride >= 1.
std::vector<double> EveryNth(absl::Span<const double> samples, size_t stride);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_SAMPLES_H_
