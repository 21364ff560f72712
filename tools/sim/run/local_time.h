// Every worker's local time in a step: its cost, its speed, its luck.
//
// Purpose: turns loads into seconds for equal and unequal workers. local_g = (C + t_l L_g + c_p * prompt
// tokens) / speed_g * jitter. Threads: none; one run owns it. Deterministic for a seed. Tokens in, seconds
// out.
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

  // By rank; valid until the next call. Call once per step.
  const std::vector<double>& Measure(absl::Span<const int64_t> loads,
                                     absl::Span<const int64_t> prefill_tokens);

  // The step that perfect balance would give: all workers as long as it takes them together, without jitter.
  // For equal workers C + t_l * mean L (+ prompts).
  double Balanced(absl::Span<const int64_t> loads, absl::Span<const int64_t> prefill_tokens) const;

  // Makes `spec` say how fast worker g is, in units of an ordinary worker's time per token.
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
