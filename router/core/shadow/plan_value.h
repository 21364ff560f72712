// The loads that result from a plan, now and as far as the outlook reaches.
//
// Purpose: the measure for comparing shadows. T_g(h) is worker g's local time h steps ahead in a reference
// worker's tokens, with the plan's requests: time_offset + time_per_token * L_g(h) + prefill_weight * N_g(h),
// where a request of s tokens adds (s + h) * P(still active at h) to L and s * P(still active at h) to N.
// Idle work is G max_g T_g - sum_g T_g, which equals the imbalance where workers are equal. Cost: O((G +
// requests) H). Threads: one.
#ifndef BFIO_ROUTER_CORE_SHADOW_PLAN_VALUE_H_
#define BFIO_ROUTER_CORE_SHADOW_PLAN_VALUE_H_

#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

struct PlanValue {
  // Idle work of the plan's own step, tokens.
  double idle_now = 0;
  // max_g T_g of that step, tokens: it determines the duration.
  double longest_now = 0;
  // Mean over h = 0 .. H with weights d^h, tokens; idle_now when there is no outlook.
  double idle_ahead = 0;
};

class PlanMeter {
 public:
  // d, in (0, 1].
  explicit PlanMeter(double discount) : discount_(discount) {}

  // REQUIRES: the plan satisfies the contract of policy.h.
  PlanValue Measure(const Snapshot& snapshot, absl::Span<const Assignment> plan);

 private:
  double discount_;
  // [g * (H + 1) + h]: load, and prompts of the plan, tokens.
  std::vector<double> loads_, prompts_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SHADOW_PLAN_VALUE_H_
