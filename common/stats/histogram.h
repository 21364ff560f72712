// Quantiles of positive measurements (latencies) in bounded memory. P50 to p99.9 of millions of samples
// without storing them. Buckets grow geometrically, so a quantile is within kRelativeError of an actual
// sample at that rank (the idea of DDSketch, Masson et al., VLDB 2019); count, sum, mean, min and max are
// exact. Two histograms merge without further error. Threads: one thread per histogram; merge them
// afterwards. Cost: one logarithm per sample, at most about 30 kB per histogram.
#pragma once

#include <cstdint>
#include <vector>

namespace bfio {

class Histogram {
 public:
  static constexpr double kRelativeError = 0.005;
  // Samples outside of these bounds count as the bound (min, max, mean stay exact). In seconds: 1 ns to 31
  // years.
  static constexpr double kSmallest = 1e-9;
  static constexpr double kLargest = 1e9;

  // Negative values count as 0; NaN is dropped.
  void Add(double value, uint64_t times = 1);

  void Merge(const Histogram& other);

  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  // All 0 when empty.
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  double min() const { return count_ == 0 ? 0 : min_; }
  double max() const { return count_ == 0 ? 0 : max_; }

  // The sample of rank ceil(q * count), up to kRelativeError; 0 when empty. q is clamped to [0, 1]; 0 gives
  // the exact minimum, 1 the exact maximum.
  double Quantile(double q) const;

 private:
  uint64_t count_ = 0;
  double sum_ = 0;
  double min_ = 0;
  double max_ = 0;
  // buckets_[0] counts values <= kSmallest; grows on demand.
  std::vector<uint64_t> buckets_;
};

}  // namespace bfio
