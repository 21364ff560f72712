// The number of requests that may wait inside an engine, so that no slot of it is empty while the router
// hears of an end and the next request is on its way. Pure. Threads: one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace bfio::core {

class SlotCredit {
 public:
  // A slot that waits for the next request is empty for a round trip and a step. Requests wait in the engine
  // for such slots only where these would be more than this share of all slots: below it, the gain in
  // throughput is smaller than the loss from choosing the rank earlier.
  static constexpr double kLeastEmptyShare = 0.005;

  // A step has ended, with the ends of so many requests; ends between steps belong to the next one.
  void Ended(int64_t requests) { ended_per_step_ += kWeight * static_cast<double>(requests); }
  void Stepped() { ended_per_step_ -= kWeight * ended_per_step_; }

  // `delay_steps`: the round trip, in steps.
  int32_t Of(int32_t slots, double delay_steps) const {
    const double ended = ended_per_step_ * (1 + delay_steps);
    if (ended < kLeastEmptyShare * slots) return 0;
    return static_cast<int32_t>(std::min<double>(std::ceil(ended) + 1, slots));
  }

 private:
  // Weight of a step in the mean.
  static constexpr double kWeight = 1.0 / 64;

  // Mean number of requests that end in a step.
  double ended_per_step_ = 0;
};

}  // namespace bfio::core
