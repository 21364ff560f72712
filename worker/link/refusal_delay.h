// How long a worker that the router refuses for now waits before it asks again.
//
// Purpose: FAILED_PRECONDITION says that this worker and the group, or the router's settings, do not go
// together as things are. That may change without the worker: the others are replaced, the router is started
// with other flags, a wrong worker that came first goes away. So the worker keeps what it holds and asks
// again, more and more rarely. Jitter keeps the workers of a group apart. Threads: one.
#ifndef BFIO_WORKER_LINK_REFUSAL_DELAY_H_
#define BFIO_WORKER_LINK_REFUSAL_DELAY_H_

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/rng.h"

namespace bfio::worker {

class RefusalDelay {
 public:
  // A worker that was put right serves within a minute; until then it costs the router a hello a minute.
  static constexpr absl::Duration kFirst = absl::Seconds(1);
  static constexpr absl::Duration kLast = absl::Minutes(1);

  explicit RefusalDelay(uint64_t seed, absl::Duration first = kFirst)
      : rng_(seed), first_(first), next_(first) {}

  // Between half and all of a bound that doubles each time, from the first to the last.
  absl::Duration Next() {
    const absl::Duration delay = next_ * (0.5 + 0.5 * rng_.Uniform());
    next_ = std::min(2 * next_, kLast);
    return delay;
  }
  // The router has taken the worker.
  void Reset() { next_ = first_; }

 private:
  Rng rng_;
  const absl::Duration first_;
  absl::Duration next_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_REFUSAL_DELAY_H_
