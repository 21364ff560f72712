#include "router/core/scheduler/recent_waits.h"

#include <cmath>

namespace bfio::core {
namespace {

// Weights are scaled down before they overflow.
constexpr double kMostWeight = 1e100;

}  // namespace

void RecentWaits::Add(int64_t steps, double memory) {
  const size_t bucket = Bucket(steps);
  if (bucket >= weights_.size()) weights_.resize(bucket + 1, 0);
  weights_[bucket] += next_;
  total_ += next_;
  next_ *= 1 + 1 / memory;
  if (next_ < kMostWeight) return;
  for (double& weight : weights_) weight /= next_;
  total_ /= next_;
  next_ = 1;
}

int64_t RecentWaits::Quantile(double above) const {
  double seen = 0;
  for (size_t bucket = weights_.size(); bucket-- > 0;) {
    seen += weights_[bucket];
    if (seen > above * total_) return Lowest(bucket);
  }
  return 0;
}

size_t RecentWaits::Bucket(int64_t steps) {
  if (steps < kExact) return static_cast<size_t>(steps);
  const double doublings = std::log2(static_cast<double>(steps) / static_cast<double>(kExact));
  return static_cast<size_t>(kExact + static_cast<int64_t>(doublings * kPerDoubling));
}

int64_t RecentWaits::Lowest(size_t bucket) {
  const int64_t index = static_cast<int64_t>(bucket);
  if (index < kExact) return index;
  const double doublings = static_cast<double>(index - kExact) / kPerDoubling;
  return static_cast<int64_t>(std::ceil(static_cast<double>(kExact) * std::exp2(doublings)));
}

}  // namespace bfio::core
