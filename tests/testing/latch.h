// As std::latch, which a thread that waits must not destroy before count_down has returned in the others.
// This one may be destroyed when wait returns. ThreadSanitizer sees what absl::Notification and
// absl::BlockingCounter do not show it: the distribution's abseil is not instrumented. Threads: any.
#pragma once

#include "common/base/mutex.h"

namespace bfio::testing {

class Latch {
 public:
  explicit Latch(int count) : count_(count) {}
  ~Latch() { MutexLock lock(&mutex_); }

  void count_down() {
    MutexLock lock(&mutex_);
    --count_;
  }
  bool try_wait() const {
    MutexLock lock(&mutex_);
    return count_ <= 0;
  }
  void wait() const { wait_for(absl::InfiniteDuration()); }
  // Whether the count is down.
  bool wait_for(absl::Duration timeout) const {
    MutexLock lock(&mutex_);
    const auto down = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ <= 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&down), timeout);
  }

 private:
  mutable Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::testing
