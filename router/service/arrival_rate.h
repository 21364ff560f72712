// Requests per second, as they have been coming.
//
// Purpose: the demand that chains are composed for. Exponentially weighted over kMemory. Threads: any.
#ifndef BFIO_ROUTER_SERVICE_ARRIVAL_RATE_H_
#define BFIO_ROUTER_SERVICE_ARRIVAL_RATE_H_

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio::router {

class ArrivalRate {
 public:
  static constexpr absl::Duration kMemory = absl::Minutes(1);

  void Add(absl::Time now) {
    MutexLock lock(&mutex_);
    if (last_ == absl::InfinitePast()) first_ = last_ = now;
    rate_ = Decayed(now) + 1 / absl::ToDoubleSeconds(kMemory);
    last_ = now;
  }

  // 0 before a request has come. In the first minute what has come counts for the time there has been.
  double PerSecond(absl::Time now) const {
    MutexLock lock(&mutex_);
    if (last_ == absl::InfinitePast()) return 0;
    const double seen = 1 - std::exp(-absl::FDivDuration(now - first_, kMemory));
    return Decayed(now) / std::max(seen, 1 / absl::ToDoubleSeconds(kMemory));
  }

 private:
  double Decayed(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return rate_ * std::exp(-absl::FDivDuration(std::max(absl::ZeroDuration(), now - last_), kMemory));
  }

  mutable Mutex mutex_;
  absl::Time first_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_ARRIVAL_RATE_H_
