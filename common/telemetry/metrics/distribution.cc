#include "common/telemetry/metrics/distribution.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace bfio {

Distribution::Distribution(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

void Distribution::Add(double value, uint64_t times) {
  if (std::isnan(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

Distribution& Distribution::operator+=(const Distribution& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  return *this;
}

std::vector<double> RequestSeconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
          0.75,  1,      2.5,   5,    7.5,   10,   20,    40,  80,   160, 320, 900};
}

std::vector<double> StepSeconds() {
  return {1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,  0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015,
          0.02, 0.025,  0.03, 0.04, 0.05,   0.075, 0.1,   0.25,   0.5,   1,      2.5,  10};
}

std::vector<double> TokenCounts() {
  std::vector<double> bounds;
  for (double bound = 1; bound <= 131072; bound *= 2) bounds.push_back(bound);
  return bounds;
}

}  // namespace bfio
