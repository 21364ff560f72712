// The distribution of recent waits, with exponential decay.
//
// Purpose: a quantile over the recent samples of a stream, in constant memory and a few hundred additions a
// question. Each sample counts a little more than the one before it. Waits are whole steps, exact up to
// kExact and within 3 % beyond. Threads: one.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_RECENT_WAITS_H_
#define BFIO_ROUTER_CORE_SCHEDULER_RECENT_WAITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bfio::core {

class RecentWaits {
 public:
  // Samples so many back count 1/e of the newest. REQUIRES: memory >= 1, steps >= 0.
  void Add(int64_t steps, double memory);

  // The least wait that at most a share `above` of the samples exceeds; 0 before the first sample.
  int64_t Quantile(double above) const;

 private:
  static constexpr int64_t kExact = 256;
  static constexpr int64_t kPerDoubling = 32;

  static size_t Bucket(int64_t steps);
  // The smallest wait that falls into the bucket.
  static int64_t Lowest(size_t bucket);

  std::vector<double> weights_;
  double total_ = 0;
  // Weight of the next sample.
  double next_ = 1;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_RECENT_WAITS_H_
