// How long a plan that is due may be delayed without being late. A pipelined plan is made while the step
// before its own runs, and has no effect until that step has ended. A request that arrives after the plan was
// made waits for the next plan, one step longer. So the plan is made shortly before it is needed; it then
// also places the requests that have arrived by then. The shortest of the recent steps predicts the earliest
// end of the present one. A quarter of it, since steps vary, and kDelivery are reserved for making and
// sending the plan. Of the rest, a share is used as the delay. The share grows with each step and is halved
// by each late plan, because a late plan delays its placements by a step. Seconds. Pure; one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace bfio::core {

class PlanDelay {
 public:
  // All ranks have reported a step, `step_s` after the one before. `late`: since the last call a plan arrived
  // too late for its step. Returns how long the plan that is due now may be delayed, in seconds; 0 right
  // after a late one.
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
  // Number of recent steps from which the next one is predicted.
  static constexpr size_t kSteps = 16;
  // Growth of the share per step, so that at most one plan in 128 is late because of a delay that was too
  // long.
  static constexpr double kGrowth = 1.0 / 256;

  double share_ = 0;
  // A ring buffer.
  std::array<double, kSteps> durations_s_ = {};
  size_t steps_ = 0;
};

}  // namespace bfio::core
