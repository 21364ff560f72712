#include "common/stats/histogram.h"

#include <algorithm>
#include <cmath>

namespace bfio {
namespace {

// Bucket i covers (kSmallest * g^(i-1), kSmallest * g^i] and is reported by the value with equal relative
// distance to both ends; g = (1 + e) / (1 - e) makes that distance e.
constexpr double kGrowth = (1 + Histogram::kRelativeError) / (1 - Histogram::kRelativeError);

size_t BucketOf(double value) {
  if (value <= Histogram::kSmallest) return 0;
  static const double inverse_log = 1 / std::log(kGrowth);
  const double clipped = std::min(value, Histogram::kLargest);
  return static_cast<size_t>(
      std::max(1.0, std::ceil(std::log(clipped / Histogram::kSmallest) * inverse_log)));
}

double ValueOf(size_t bucket) {
  if (bucket == 0) return Histogram::kSmallest;
  return Histogram::kSmallest * std::pow(kGrowth, static_cast<double>(bucket)) * 2 / (kGrowth + 1);
}

}  // namespace

void Histogram::Add(double value, uint64_t times) {
  if (std::isnan(value) || times == 0) return;
  value = std::max(value, 0.0);
  const size_t bucket = BucketOf(value);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  buckets_[bucket] += times;
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  if (other.buckets_.size() > buckets_.size()) buckets_.resize(other.buckets_.size());
  for (size_t i = 0; i < other.buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = count_ == 0 ? other.max_ : std::max(max_, other.max_);
  count_ += other.count_;
  sum_ += other.sum_;
}

double Histogram::Quantile(double q) const {
  if (count_ == 0) return 0;
  if (q <= 0) return min_;
  if (q >= 1) return max_;
  // The small tolerance keeps q * count = 9900.000000000002 at rank 9900.
  const double exact = std::ceil(q * static_cast<double>(count_) * (1 - 1e-12));
  const auto rank = static_cast<uint64_t>(std::max(1.0, exact));
  uint64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::clamp(ValueOf(i), min_, max_);
  }
  return max_;
}

}  // namespace bfio
