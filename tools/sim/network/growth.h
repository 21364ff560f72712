// Does what waits grow without bound? A test over independent runs.
//
// Purpose: verdicts on stability with a stated rate of false alarms. Of every run, one seed each, the slope
// of the samples of its second half (the first belongs to the start from an empty system); then a sign test
// over the runs. If growth is at most the threshold in the median run, all of n runs exceed it with
// probability at most 2^-n: the false-alarm rate of "grows", and by the same argument that of "bounded". No
// law of the samples is assumed, nor that those of one run are independent. Pure. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_GROWTH_H_
#define BFIO_TOOLS_SIM_NETWORK_GROWTH_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace bfio::sim {

// Slope by least squares over the second half of equally spaced samples, per unit of time. REQUIRES: at least
// four samples, every > 0.
double SecondHalfSlope(absl::Span<const int64_t> samples, double every);

struct GrowthVerdict {
  enum Kind { kBounded, kGrows, kUndecided } kind = kUndecided;
  // Of the runs' slopes.
  double median_slope = 0;
  // 2^-runs.
  double false_alarm_rate = 1;

  // "bounded", "grows" or "undecided".
  std::string Name() const;
};

// `slopes`: one of each run. REQUIRES: not empty.
GrowthVerdict JudgeGrowth(absl::Span<const double> slopes, double threshold);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_GROWTH_H_
