// How long requests would wait if the oldest always went first.
//
// Purpose: the reference wait of a class of a pool, for all its groups. Whichever requests are admitted, a
// first-come rule fills the same slots at the same steps as any other rule that leaves none empty, so its
// pool holds as many requests as ours, namely the youngest ones. Counting arrivals and admissions is
// therefore enough to determine which requests it would admit now and how long they have waited; no second
// queue is simulated. (Completions come at the same steps only as far as the lengths of the admitted requests
// are alike, so this is an estimate.)
//
// Where KV is the limit, the premise is not true: the number of requests that fit depends on their sizes. The
// result is then the wait if as many requests were admitted as here, but in order of arrival.
//
// Arrivals count from the step at which they entered the pool, however late the next decision is. Threads:
// one. Cost: O(1) amortised per request; a quantile per question after an admission.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
#define BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_

#include <cstdint>
#include <deque>

#include "router/core/scheduler/recent_waits.h"

namespace bfio::core {

class VirtualFcfs {
 public:
  // A request that waits since `step` enters the pool.
  void Arrive(int64_t step);
  // One is cancelled: the queue loses its oldest, without a wait.
  void Leave();
  // A decision at `step` has admitted so many. REQUIRES: so many are here.
  void Decide(int64_t step, int64_t admitted);

  int64_t size() const { return queued_; }
  // 99 % of recent requests would have waited at most so many steps; 0 before there were any. long_run_p99:
  // the same over a time ten times as long.
  int64_t p99() const { return recent_.P99(); }
  int64_t long_run_p99() const { return long_run_.P99(); }

 private:
  struct Arrivals {
    int64_t step;
    int64_t requests;
  };

  // Ascending by step.
  std::deque<Arrivals> queue_;
  int64_t queued_ = 0;
  struct Waits {
    RecentWaits waits;
    // Below 0: to be computed again.
    mutable int64_t p99 = 0;

    int64_t P99() const;
  };
  Waits recent_, long_run_;
  // Mean requests admitted per decision, recently.
  double admitted_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
