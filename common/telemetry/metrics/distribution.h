// The distribution of a measurement in buckets with fixed bounds: the data of a Prometheus histogram.
// Collects latencies in the thread that measures them; a scrape reads a copy. stats/histogram.h gives more
// precise quantiles, but its buckets do not match those of dashboards. Threads: owned by one thread; copy it
// for another.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace bfio {

class Distribution {
 public:
  // REQUIRES: bounds ascend strictly and are finite.
  explicit Distribution(std::vector<double> bounds);
  Distribution(std::initializer_list<double> bounds) : Distribution(std::vector<double>(bounds)) {}

  // Ignores NaN.
  void Add(double value, uint64_t times = 1);

  // REQUIRES: both have the same bounds.
  Distribution& operator+=(const Distribution& other);

  // Inclusive upper bounds of the buckets; the last bucket has none.
  const std::vector<double>& bounds() const { return bounds_; }
  // Counts per bucket, not cumulative; one more than bounds.
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

// Bounds in seconds. RequestSeconds: from a millisecond to a quarter of an hour, for times of requests; the
// next function: from 10 microseconds to 10 seconds, for parts of a step.
std::vector<double> RequestSeconds();
std::vector<double> StepSeconds();
// Bounds in tokens, powers of 2 from 1 to 128 Ki.
std::vector<double> TokenCounts();

}  // namespace bfio
