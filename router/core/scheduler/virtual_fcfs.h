// How long requests would wait if the oldest always went first.
//
// Purpose: the yardstick of fairness that a pool has for all its groups. Whoever is admitted, a first-come
// rule fills the same slots at the same steps as any other rule that leaves none empty, so its pool holds as
// many requests as ours, namely the youngest ones. Counting arrivals and admissions is therefore enough to
// know whom it would be admitting now and how long they have waited; no second queue is simulated.
// (Completions come at the same steps only as far as the lengths of those admitted are alike: an estimate,
// and a good one.)
//
// Where KV binds, the premise is not true: how many fit depends on who they are. What is counted is then how
// long requests would wait if ours were admitted as often as ours are, but in order of arrival.
//
// Cancelled requests leave this queue at its head. Threads: one. Cost: O(1) amortised per request.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
#define BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_

#include <cstdint>
#include <deque>
#include <limits>

#include "router/core/scheduler/recent_waits.h"

namespace bfio::core {

class VirtualFcfs {
 public:
  // One decision at `step`: so many waited, so many of them were admitted. Nobody who waits has waited since
  // before `oldest_step`: what the queue still holds from before then was cancelled unseen.
  void Decide(int64_t step, int64_t waiting, int64_t admitted,
              int64_t oldest_step = std::numeric_limits<int64_t>::min());

  // 99 % of recent requests would have waited at most so many steps.
  int64_t p99() const { return p99_; }

 private:
  struct Arrivals {
    int64_t step;
    int64_t requests;
  };

  // Takes up to `requests` from the head; records how long they had waited at `step` if asked to.
  void Pop(int64_t requests, int64_t step, int64_t oldest_step, bool record);

  std::deque<Arrivals> queue_;
  int64_t queued_ = 0;
  RecentWaits waits_;
  // Mean requests admitted per decision, recently.
  double admitted_ = 0;
  int64_t p99_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
