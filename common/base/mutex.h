// absl's Mutex, in a form that ThreadSanitizer understands.
//
// Purpose: use bfio::Mutex, bfio::MutexLock and bfio::CondVar where absl's would be used. They are absl's,
// except in builds with -fsanitize=thread: there the distribution's abseil is not instrumented, every field
// it guards would be reported as a race, and a stand-in over std::mutex with the same interface (the part
// that bfio uses) takes its place. Threads: as absl's.
#ifndef BFIO_COMMON_BASE_MUTEX_H_
#define BFIO_COMMON_BASE_MUTEX_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#ifdef __SANITIZE_THREAD__

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace bfio {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    // Whoever waits for a condition looks again after each critical section.
    changed_.notify_all();
    mutex_.unlock();
  }
  void Await(const absl::Condition& condition) { AwaitWithTimeout(condition, absl::InfiniteDuration()); }
  // True when the condition holds.
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    changed_.notify_all();
    while (!condition.Eval()) {
      if (!WaitUntil(changed_, deadline)) return condition.Eval();
    }
    return true;
  }

 private:
  friend class CondVar;

  // False after the deadline. Looks up now and then, so that no deadline is too far for the clock's type.
  bool WaitUntil(std::condition_variable_any& variable, absl::Time deadline) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    variable.wait_for(mutex_, absl::ToChronoNanoseconds(std::min(left, absl::Seconds(3600))));
    return true;
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  void Signal() { variable_.notify_one(); }
  void SignalAll() { variable_.notify_all(); }
  void Wait(Mutex* mutex) { WaitWithDeadline(mutex, absl::InfiniteFuture()); }
  // True when the deadline has passed.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
    mutex->changed_.notify_all();
    return !mutex->WaitUntil(variable_, deadline);
  }
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
    return WaitWithDeadline(mutex, absl::Now() + timeout);
  }

 private:
  std::condition_variable_any variable_;
};

}  // namespace bfio

#else

namespace bfio {

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using CondVar = absl::CondVar;

}  // namespace bfio

#endif  // __SANITIZE_THREAD__

#endif  // BFIO_COMMON_BASE_MUTEX_H_
