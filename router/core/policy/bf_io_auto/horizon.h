// The horizon rule: placement by expected step times over a request's stay, while every request gets a slot.
//
// Purpose: the barrier waits for the largest load at every step, and a request adds to the load as long as it
// stays. So each request, largest first, is placed where it least raises
//
//     sum over h of d_h E max_g T_g(h)        E max_g T_g(h) ~ tau_h log sum_g exp(m_g(h) / tau_h)
//
//   m_g(h)   expected time of worker g's step h steps ahead, of its present requests (Snapshot::far)
//   tau_h    s_h / sqrt(2 log G); s_h^2 is the variance of a worker's time h steps ahead. For normal loads
//            E max is at most
//            tau log sum exp(m / tau) + s^2 / (2 tau), and at equal means this tau minimises the bound. tau
//            grows with h, so that for far steps only large differences matter.
//   d_h      exp(-h / r), where r is the mean number of steps that a resident still stays. A knot of the
//            outlook stands for the steps whose ratio to it is closer to 1 than to other knots.
//
// So long requests are spread by number rather than by tokens, and a worker whose residents leave soon takes
// more. The rule has no tuned constant.
//
// Threads: one. Cost: that of ExpectedSteps. At a deadline (StopSignal) the requests that are left go to the
// least loaded worker, O(log workers) each.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HORIZON_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HORIZON_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/model/stop_signal.h"
#include "router/core/policy/bf_io_auto/expected_steps.h"

namespace bfio::core {

class Horizon {
 public:
  // Places all requests; false, with `decision` and `free` incomplete, when one fits nowhere. When `stop`
  // ends it, the decision says so, and the rest goes to the least loaded worker (PlaceOnLeastLoaded).
  // REQUIRES: `decision` is empty; snapshot.far is set.
  bool Place(const Snapshot& snapshot, const StopSignal& stop, FreeCapacity& free, Decision& decision);

 private:
  ExpectedSteps steps_;
  ExpectedSteps::Request request_;
  // Scratch.
  std::vector<int32_t> order_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HORIZON_H_
