// How long a plan that is due may be delayed without being late.
//
// Purpose: a pipelined plan is made while the step before its own runs, and has no effect until that step has
// ended. A request that arrives after the plan was made waits for the next one, a step longer. So the plan is
// made shortly before it is needed: what has arrived by then is placed with the same loads and the same
// effect. The shortest of the recent steps predicts the earliest end of the present one. A quarter of it,
// since steps vary, and kDelivery are left for the plan to be made and sent. How much of the rest is used
// follows from whether plans arrive in time: a share that grows with each step and is halved by each late
// plan, which delays its placements by a step.
//
// Seconds. Pure; one thread.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_PLAN_DELAY_H_
#define BFIO_ROUTER_CORE_SCHEDULER_PLAN_DELAY_H_

#include <algorithm>
#include <array>
#include <cstddef>

namespace bfio::core {

class PlanDelay {
 public:
  // All ranks have reported a step, `step_s` after the one before. `late`: since the last call a plan came
  // too late for its step. Returns how long the plan that is due now may be delayed, 0 right after a late
  // one.
  double OnStep(double step_s, bool late) {
    durations_s_[steps_++ % kSteps] = step_s;
    share_ = late ? share_ / 2 : std::min(1.0, share_ + kGrowth);
    if (late || steps_ < kSteps) return 0;
    const double shortest_s = *std::min_element(durations_s_.begin(), durations_s_.end());
    return share_ * std::max(0.0, kMostOfStep * shortest_s - kDelivery);
  }

 private:
  static constexpr double kDelivery = 3e-3;
  static constexpr double kMostOfStep = 0.75;
  // Those that predict the next one.
  static constexpr size_t kSteps = 16;
  // Growth of the share per step, so that at most one plan in 128 is late because of a delay that was too
  // long.
  static constexpr double kGrowth = 1.0 / 256;

  double share_ = 0;
  // A ring.
  std::array<double, kSteps> durations_s_ = {};
  size_t steps_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_PLAN_DELAY_H_
