// Waits in whole steps, counted exactly.
//
// Purpose: quantiles of small integers; a histogram with buckets could not distinguish 1 step from 2. Memory:
// one counter per step of the longest wait. Threads: one.
#ifndef BFIO_TOOLS_SIM_RUN_WAIT_COUNTS_H_
#define BFIO_TOOLS_SIM_RUN_WAIT_COUNTS_H_

#include <cstdint>
#include <vector>

namespace bfio::sim {

class WaitCounts {
 public:
  // Negative waits count as 0.
  void Add(int64_t steps);

  int64_t count() const { return count_; }
  int64_t max() const { return static_cast<int64_t>(counts_.size()) - (counts_.empty() ? 0 : 1); }
  // 0 when empty.
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }

  // The smallest wait that at least a share q of the waits does not exceed, exactly; 0 when empty. q is
  // clipped to [0, 1].
  int64_t Quantile(double q) const;

 private:
  // By wait.
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  int64_t sum_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_WAIT_COUNTS_H_
