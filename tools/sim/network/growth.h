// Does what waits grow without bound? A sign test over independent runs.
//
// Purpose: verdicts on stability, and what their rate of false alarms is a rate of. Each run, of a seed of
// its own, gives one number; all of them above a threshold is "grows", all below it "bounded". What is exact:
// if the median of that number over seeds is at most the threshold, "grows" comes with probability at most
// 2^-n; if it is at least the threshold, so does "bounded". No law is assumed, nor that the samples of one
// run are independent. Only the number and the horizon tie that median to stability:
//
//   PeakGrowth       for verdicts. Where tokens grow, steadily or in an oscillation whose peaks and periods
//                    grow alike (Rybko-Stolyar: the next peak is up to 8.5 times as high after as many times
//                    as long), it goes to a positive constant, in whatever phase the run ends. Where they do
//                    not, records still rise, as the logarithm of time: within [T/10, T] by 2.3 s for levels
//                    with an exponential tail of scale s, so by 2.6 s / T a unit of time. Just below capacity
//                    s = m / (2 (1 - load)) for Poisson arrivals of m tokens each. The threshold is the least
//                    growth that is to be seen; T must be so long that 2.6 s / T is well below it.
//   SecondHalfSlope  for the size of a steady growth. Not for verdicts: it is negative where an oscillation,
//                    growing or not, comes down, and positive while a stable system fills up.
//
// Pure. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_GROWTH_H_
#define BFIO_TOOLS_SIM_NETWORK_GROWTH_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace bfio::sim {

// Slope by least squares over the second half of equally spaced samples, per unit of time. REQUIRES: at least
// four samples, every > 0.
double SecondHalfSlope(absl::Span<const int64_t> samples, double every);

// How far the largest of all samples, equally spaced, is above the largest of their first tenth, per unit of
// time of the rest; never negative. REQUIRES: at least ten samples, every > 0.
double PeakGrowth(absl::Span<const int64_t> samples, double every);

struct GrowthVerdict {
  enum Kind { kBounded, kGrows, kUndecided } kind = kUndecided;
  // Of the runs' numbers.
  double median = 0;

  // "bounded", "grows" or "undecided".
  std::string Name() const;
};

// `growths`: one number of each run. REQUIRES: not empty.
GrowthVerdict JudgeGrowth(absl::Span<const double> growths, double threshold);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_GROWTH_H_
