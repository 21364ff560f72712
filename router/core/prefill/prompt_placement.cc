#include "router/core/prefill/prompt_placement.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {

std::vector<double> SlowestProbabilities(absl::Span<const double> expected_s, int64_t rows) {
  double most_s = 0, sum_s = 0;
  for (const double seconds : expected_s) {
    most_s = std::max(most_s, seconds);
    sum_s += seconds;
  }
  const auto ranks = static_cast<double>(expected_s.size());
  const double spread_s = rows > 0 ? sum_s / ranks / std::sqrt(static_cast<double>(rows) / ranks) : 0;
  std::vector<double> probabilities;
  double sum = 0;
  for (const double seconds : expected_s) {
    probabilities.push_back(spread_s > 0 ? std::exp((seconds - most_s) / spread_s) : 1);
    sum += probabilities.back();
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

}  // namespace bfio::core
