#include "tools/sim/experiment/samples.h"

#include <algorithm>
#include <cmath>

namespace bfio::sim {

double QuantileOf(std::vector<double> samples, double q) {
  if (samples.empty()) return std::nan("");
  const double rank = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(rank);
  std::nth_element(samples.begin(), samples.begin() + below, samples.end());
  const double low = samples[below];
  if (below + 1 == static_cast<std::ptrdiff_t>(samples.size())) return low;
  const double high = *std::min_element(samples.begin() + below + 1, samples.end());
  return low + (rank - static_cast<double>(below)) * (high - low);
}

std::vector<double> MovingMean(absl::Span<const double> samples, size_t window) {
  std::vector<double> means;
  double sum = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    sum += samples[i];
    if (i >= window) sum -= samples[i - window];
    if (i + 1 >= window) means.push_back(sum / static_cast<double>(window));
  }
  return means;
}

std::vector<double> EveryNth(absl::Span<const double> samples, size_t stride) {
  std::vector<double> kept;
  for (size_t i = 0; i < samples.size(); i += stride) kept.push_back(samples[i]);
  return kept;
}

}  // namespace bfio::sim
