// Every worker's local time in a step: from its load, its speed and random jitter. Converts loads to seconds,
// for equal and unequal workers. local_g = (C + t_l L_g + c_p * prompt tokens) / speed_g * jitter. Threads:
// none; one run owns it. Deterministic for a seed. Tokens in, seconds out.
#ifndef BFIO_TOOLS_SIM_RUN_LOCAL_TIME_H_
#define BFIO_TOOLS_SIM_RUN_LOCAL_TIME_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/rng.h"
#include "common/cost/step_time.h"
#include "router/core/scheduler/events.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

class LocalTime {
 public:
  explicit LocalTime(const SimOptions& options);

  // Local times by rank; valid until the next call. Called once per step.
  const std::vector<double>& Measure(absl::Span<const int64_t> loads,
                                     absl::Span<const int64_t> prefill_tokens);

  // The step time under perfect balance: the time of all workers if they shared the total work, without
  // jitter. For equal workers C + t_l * mean L (+ prompts).
  double Balanced(absl::Span<const int64_t> loads, absl::Span<const int64_t> prefill_tokens) const;

  // Sets the speed of worker g in `spec`, in units of the time per token of a worker with speed 1.
  void Describe(core::WorkerIndex g, core::WorkerSpec& spec) const;

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

#endif  // BFIO_TOOLS_SIM_RUN_LOCAL_TIME_H_
