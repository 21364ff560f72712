// The demand for which chains of servers are composed: requests per second over about the last minute.
// Threads: any.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_RATE_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_RATE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/stats/arrival_rate.h"

namespace bfio::router {

class RequestRate {
 public:
  static constexpr absl::Duration kMemory = absl::Minutes(1);

  void Add(absl::Time now) {
    MutexLock lock(&mutex_);
    if (first_ == absl::InfinitePast()) first_ = now;
    rate_.OnArrival(Since(now));
  }

  // 0 before the first request. In the first second after it, the count is divided by a whole second.
  double PerSecond(absl::Time now) const {
    MutexLock lock(&mutex_);
    return first_ == absl::InfinitePast() ? 0 : rate_.Rate(std::max(1.0, Since(now)));
  }

 private:
  double Since(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return absl::ToDoubleSeconds(now - first_);
  }

  mutable Mutex mutex_;
  absl::Time first_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  ArrivalRate rate_ ABSL_GUARDED_BY(mutex_){absl::ToDoubleSeconds(kMemory)};
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_RATE_H_
