// How a measurement is distributed, in buckets whose bounds are fixed: what a Prometheus histogram is made
// of.
//
// Purpose: latencies by the thread that measures them, read by a scrape. stats/histogram.h gives finer
// quantiles, but its buckets are not those of a dashboard's. Threads: owned by one thread; copy it for
// another.
#ifndef BFIO_COMMON_TELEMETRY_METRICS_DISTRIBUTION_H_
#define BFIO_COMMON_TELEMETRY_METRICS_DISTRIBUTION_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace bfio {

class Distribution {
 public:
  // REQUIRES: bounds ascend strictly and are finite.
  explicit Distribution(std::vector<double> bounds);
  Distribution(std::initializer_list<double> bounds) : Distribution(std::vector<double>(bounds)) {}

  // NaN is dropped.
  void Add(double value, uint64_t times = 1);

  // REQUIRES: both have the same bounds.
  Distribution& operator+=(const Distribution& other);

  // Upper bounds, inclusive; the last bucket has none.
  const std::vector<double>& bounds() const { return bounds_; }
  // One more than bounds; not cumulative.
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

// Bounds in seconds: from a millisecond to a quarter of an hour, for what a request waits and takes; from 10
// microseconds to 10 seconds, for the parts of a step.
std::vector<double> RequestSeconds();
std::vector<double> StepSeconds();
// Bounds in tokens, powers of 2 from 1 to 128 Ki.
std::vector<double> TokenCounts();

// Bounds of a share that is mostly far below 1: 0, then from 1e-4 to 1.
std::vector<double> GapShares();

// The value below which a share q of the measurements lie, linear within a bucket, 0 when there are none.
// `counts` has one element more than `bounds`; what lies above the last bound counts as that bound. This is
// what a dashboard's histogram_quantile makes of the buckets.
double BucketQuantile(const std::vector<double>& bounds, const std::vector<uint64_t>& counts, double q);

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_METRICS_DISTRIBUTION_H_
