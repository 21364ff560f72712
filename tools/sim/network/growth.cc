#include "tools/sim/network/growth.h"

#include <algorithm>
#include <vector>

namespace bfio::sim {

double SecondHalfSlope(absl::Span<const int64_t> samples, double every) {
  const absl::Span<const int64_t> half = samples.subspan(samples.size() / 2);
  const auto n = static_cast<double>(half.size());
  double mean = 0;
  for (const int64_t y : half) mean += static_cast<double>(y) / n;
  double xy = 0, xx = 0;
  for (size_t i = 0; i < half.size(); ++i) {
    const double x = static_cast<double>(i) - (n - 1) / 2;
    xy += x * (static_cast<double>(half[i]) - mean);
    xx += x * x;
  }
  return xy / xx / every;
}

double PeakGrowth(absl::Span<const int64_t> samples, double every) {
  const size_t tenth = samples.size() / 10;
  const int64_t early = *std::max_element(samples.begin(), samples.begin() + tenth);
  const int64_t all = *std::max_element(samples.begin(), samples.end());
  return static_cast<double>(all - early) / (static_cast<double>(samples.size() - tenth) * every);
}

std::string GrowthVerdict::Name() const {
  return kind == kBounded ? "bounded" : kind == kGrows ? "grows" : "undecided";
}

GrowthVerdict JudgeGrowth(absl::Span<const double> growths, double threshold) {
  GrowthVerdict verdict;
  std::vector<double> sorted(growths.begin(), growths.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  verdict.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  if (sorted.front() > threshold) verdict.kind = GrowthVerdict::kGrows;
  if (sorted.back() < threshold) verdict.kind = GrowthVerdict::kBounded;
  return verdict;
}

}  // namespace bfio::sim
