#include "tools/sim/run/wait_counts.h"

#include <algorithm>
#include <cmath>

namespace bfio::sim {

void WaitCounts::Add(int64_t steps) {
  steps = std::max<int64_t>(0, steps);
  if (steps >= static_cast<int64_t>(counts_.size())) counts_.resize(static_cast<size_t>(steps) + 1);
  ++counts_[static_cast<size_t>(steps)];
  ++count_;
  sum_ += steps;
}

int64_t WaitCounts::Quantile(double q) const {
  if (count_ == 0) return 0;
  const int64_t rank = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_))));
  int64_t below = 0;
  for (int64_t steps = 0; steps < static_cast<int64_t>(counts_.size()); ++steps) {
    below += counts_[static_cast<size_t>(steps)];
    if (below >= rank) return steps;
  }
  return max();
}

}  // namespace bfio::sim
