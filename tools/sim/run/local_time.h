// Every worker's local time in a step: from its load, its speed and random jitter. Converts loads to seconds,
// for equal and unequal workers. local_g = (C + t_l L_g + c_p * prompt tokens) / speed_g * jitter. Threads:
// none; one run owns it. Deterministic for a seed. Tokens in, seconds out.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "common/base/rng.h"
#include "common/cost/step_time.h"
#include "router/core/scheduler/events.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

class LocalTime {
 public:
  explicit LocalTime(const SimOptions& options)
      : cost_(options.cost),
        jitter_(options.jitter),
        speeds_(options.workers, 1.0),
        rng_(Rng(options.seed).Fork(0x717e)),
        local_(options.workers) {
    for (size_t g = 0; g < speeds_.size() && !options.speeds.empty(); ++g)
      speeds_[g] = options.speeds[g % options.speeds.size()];
    speed_sum_ = std::accumulate(speeds_.begin(), speeds_.end(), 0.0);
  }

  // Local times by rank; valid until the next call. Called once per step.
  const std::vector<double>& Measure(absl::Span<const int64_t> loads,
                                     absl::Span<const int64_t> prefill_tokens) {
    for (size_t g = 0; g < loads.size(); ++g) {
      local_[g] = cost_.StepSeconds(loads[g], prefill_tokens[g]) / speeds_[g];
      if (jitter_ > 0) local_[g] *= std::exp(jitter_ * rng_.Normal() - 0.5 * jitter_ * jitter_);
    }
    return local_;
  }

  // The step time under perfect balance: the time of all workers if they shared the total work, without
  // jitter. For equal workers C + t_l * mean L (+ prompts).
  double Balanced(absl::Span<const int64_t> loads, absl::Span<const int64_t> prefill_tokens) const {
    // All workers end at T: the sum of speed * T is the sum of their times at speed 1.
    double work = 0;
    for (size_t g = 0; g < loads.size(); ++g) work += cost_.StepSeconds(loads[g], prefill_tokens[g]);
    return work / speed_sum_;
  }

  // Sets the speed of worker g in `spec`, in units of the time per token of a worker with speed 1.
  void Describe(core::WorkerIndex g, core::WorkerSpec& spec) const {
    const double speed = speeds_[static_cast<size_t>(g)];
    spec.time_per_token = 1 / speed;
    if (cost_.tl_s_per_token > 0) spec.time_offset = cost_.c_s / cost_.tl_s_per_token * (1 / speed - 1);
  }

 private:
  StepCost cost_;
  double jitter_;
  // By rank.
  std::vector<double> speeds_;
  double speed_sum_ = 0;
  Rng rng_;
  std::vector<double> local_;
};

}  // namespace bfio::sim
