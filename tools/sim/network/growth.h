// Whether the backlog grows without bound: a sign test over independent runs.
//
// Purpose: verdicts on stability with a known rate of false alarms. Each run, with its own seed, gives one
// number. All numbers above a threshold mean "grows", all below it "bounded". What is exact: if the median of
// that number over seeds is at most the threshold, "grows" has probability at most 2^-n; if it is at least
// the threshold, so has "bounded". No distribution is assumed, nor that the samples of one run are
// independent. Which number is used, and the horizon, determine how that median relates to stability:
//
//   PeakGrowth       for verdicts. Where the backlog grows, steadily or in an oscillation whose peaks and
//                    periods grow alike (Rybko-Stolyar: the next peak is up to 8.5 times as high after as
//                    many times as long), it tends to a positive constant, in whatever phase the run ends.
//                    Where it does not grow, records still rise with the logarithm of time: within [T/10, T]
//                    by 2.3 s for levels with an exponential tail of scale s, so by 2.6 s / T per unit of
//                    time. Just below capacity s = m / (2 (1 - load)) for Poisson arrivals of m tokens each.
//                    The threshold is the smallest growth to detect; T must be so long that 2.6 s / T is well
//                    below it.
//   SecondHalfSlope  for the size of a steady growth. Not for verdicts: it is negative in the falling part of
//                    an oscillation, growing or not, and positive while a stable system fills up.
//
// Pure. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_GROWTH_H_
#define BFIO_TOOLS_SIM_NETWORK_GROWTH_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace bfio::sim {

// Least-squares slope over the second half of equally spaced samples, per unit of time. REQUIRES: at least
// four samples, every > 0.
double SecondHalfSlope(absl::Span<const int64_t> samples, double every);

// The largest of all samples minus the largest of their first tenth, per unit of time of the rest; samples
// are equally spaced. Never negative. REQUIRES: at least ten samples, every > 0.
double PeakGrowth(absl::Span<const int64_t> samples, double every);

struct GrowthVerdict {
  enum Kind { kBounded, kGrows, kUndecided } kind = kUndecided;
  // Median of the runs' numbers.
  double median = 0;

  // "bounded", "grows" or "undecided".
  std::string Name() const;
};

// `growths`: one number of each run. REQUIRES: not empty.
GrowthVerdict JudgeGrowth(absl::Span<const double> growths, double threshold);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_GROWTH_H_
