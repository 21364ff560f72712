// Time limit of a decision's search.
//
// Purpose: the clock behind core::StopSignal: the core has no clock and polls this one. Threads: the decision
// thread's.
#ifndef BFIO_ROUTER_APP_DECIDE_BUDGET_H_
#define BFIO_ROUTER_APP_DECIDE_BUDGET_H_

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace bfio::router {

class DecideBudget {
 public:
  // REQUIRES: budget > 0.
  explicit DecideBudget(absl::Duration budget) : budget_(budget) {}

  // Starts the time of a decision.
  void Begin(absl::Time now) { end_ = now + budget_; }
  // True when the decision's time is over. Costs a read of the clock, some tens of nanoseconds.
  bool Over() const { return MonotonicNow() >= end_; }

 private:
  const absl::Duration budget_;
  absl::Time end_ = absl::InfiniteFuture();
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_DECIDE_BUDGET_H_
