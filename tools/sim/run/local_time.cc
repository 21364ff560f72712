#include "tools/sim/run/local_time.h"

#include <cmath>
#include <numeric>

namespace bfio::sim {

LocalTime::LocalTime(const SimOptions& options)
    : cost_(options.cost),
      jitter_(options.jitter),
      speeds_(options.workers, 1.0),
      rng_(Rng(options.seed).Fork(0x717e)),
      local_(options.workers) {
  if (!options.speeds.empty()) {
    for (size_t g = 0; g < speeds_.size(); ++g) speeds_[g] = options.speeds[g % options.speeds.size()];
  }
  speed_sum_ = std::accumulate(speeds_.begin(), speeds_.end(), 0.0);
}

const std::vector<double>& LocalTime::Measure(absl::Span<const int64_t> loads,
                                              absl::Span<const int64_t> prefill_tokens) {
  for (size_t g = 0; g < loads.size(); ++g) {
    local_[g] = cost_.StepSeconds(loads[g], prefill_tokens[g]) / speeds_[g];
    if (jitter_ > 0) local_[g] *= std::exp(jitter_ * rng_.Normal() - 0.5 * jitter_ * jitter_);
  }
  return local_;
}

double LocalTime::Balanced(absl::Span<const int64_t> loads, absl::Span<const int64_t> prefill_tokens) const {
  // All workers end at T: the sum of speed * T is the sum of their times at speed 1.
  double work = 0;
  for (size_t g = 0; g < loads.size(); ++g) work += cost_.StepSeconds(loads[g], prefill_tokens[g]);
  return work / speed_sum_;
}

void LocalTime::Describe(core::WorkerIndex g, core::WorkerSpec& spec) const {
  const double speed = speeds_[static_cast<size_t>(g)];
  spec.time_per_token = 1 / speed;
  if (cost_.tl_s_per_token > 0) spec.time_offset = cost_.c_s / cost_.tl_s_per_token * (1 / speed - 1);
}

}  // namespace bfio::sim
