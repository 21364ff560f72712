// The distribution of recent waits.
//
// Purpose: a quantile over the recent samples of a stream, in constant memory and a few hundred additions per
// quantile. It covers the last full block of samples and the block that is being filled, so a burst no longer
// counts after two blocks at the latest. (With exponential decay a burst would determine the 99th percentile
// until its weight has decayed by a factor of 100.) Waits are whole steps, exact up to kExact and within 3 %
// beyond. Threads: one.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_RECENT_WAITS_H_
#define BFIO_ROUTER_CORE_SCHEDULER_RECENT_WAITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bfio::core {

class RecentWaits {
 public:
  // A block ends after `block` samples. REQUIRES: block >= 1, steps >= 0.
  void Add(int64_t steps, int64_t block);

  // The least wait that at most a share `above` of the samples exceeds; 0 before the first sample.
  int64_t Quantile(double above) const;

 private:
  static constexpr int64_t kExact = 256;
  static constexpr int64_t kPerDoubling = 32;

  struct Block {
    // By bucket.
    std::vector<int64_t> counts;
    int64_t samples = 0;

    int64_t At(size_t bucket) const { return bucket < counts.size() ? counts[bucket] : 0; }
  };

  static size_t Bucket(int64_t steps);
  // The smallest wait that falls into the bucket.
  static int64_t Lowest(size_t bucket);

  Block full_, filling_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_RECENT_WAITS_H_
