// The delay after which a worker retries when the router refuses it temporarily. FAILED_PRECONDITION means
// that this worker does not fit the group or the router's settings at present. That may change without the
// worker: the others are replaced, the router is started with other flags, a wrong worker that came first
// leaves. So the worker keeps its requests and retries at growing intervals. Jitter keeps the workers of a
// group apart. Threads: one.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/rng.h"

namespace bfio::worker {

class RefusalDelay {
 public:
  // After a correction the worker serves within a minute; until then it sends one hello per minute.
  static constexpr absl::Duration kFirst = absl::Seconds(1);
  static constexpr absl::Duration kLast = absl::Minutes(1);

  explicit RefusalDelay(uint64_t seed, absl::Duration first = kFirst)
      : rng_(seed), first_(first), next_(first) {}

  // A random delay between half a bound and the bound, which doubles each time, from the first to the last.
  absl::Duration Next() {
    const absl::Duration delay = next_ * (0.5 + 0.5 * rng_.Uniform());
    next_ = std::min(2 * next_, kLast);
    return delay;
  }
  // The router has accepted the worker.
  void Reset() { next_ = first_; }

 private:
  Rng rng_;
  const absl::Duration first_;
  absl::Duration next_;
};

}  // namespace bfio::worker
