// How long a decision may search, and how long its shadows may plan after it.
//
// Purpose: the clock behind core::StopSignal, which the core asks now and then and cannot answer itself.
// Threads: the decision thread's.
#ifndef BFIO_ROUTER_APP_DECIDE_BUDGET_H_
#define BFIO_ROUTER_APP_DECIDE_BUDGET_H_

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace bfio::router {

class DecideBudget {
 public:
  // REQUIRES: budget > 0.
  explicit DecideBudget(absl::Duration budget) : budget_(budget) {}

  // A decision begins.
  void Begin(absl::Time now) { end_ = now + budget_; }
  // Its time is over. Costs a look at the clock, some tens of nanoseconds.
  bool Over() const { return MonotonicNow() >= end_; }
  // The shadows' time is over: as much again as the decision's.
  bool ShadowsOver() const { return MonotonicNow() >= end_ + budget_; }

 private:
  const absl::Duration budget_;
  absl::Time end_ = absl::InfiniteFuture();
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_DECIDE_BUDGET_H_
