// A mutex with conditions, and a condition variable, that wait by the monotonic clock.
//
// Purpose: absl::Mutex's interface (the part that bfio uses) over std::mutex. Debian 12's abseil sleeps until
// a wall-clock time: a clock that is set back by an hour makes its timed waits an hour longer. These do not
// notice. Deadlines are times of MonotonicNow(). ThreadSanitizer understands them too, which it does not
// understand of an abseil that is not instrumented.
//
// Threads: any. Like absl's, a Mutex may be destroyed by whoever gets it last.
#ifndef BFIO_COMMON_BASE_MUTEX_H_
#define BFIO_COMMON_BASE_MUTEX_H_

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace bfio {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    WakeAwaiting();
    mutex_.unlock();
  }
  // Both release the mutex while they wait, and look again after every critical section of another thread.
  void Await(const absl::Condition& condition) { AwaitWithTimeout(condition, absl::InfiniteDuration()); }
  // True when the condition holds.
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) {
    if (condition.Eval()) return true;
    const absl::Time deadline = MonotonicNow() + timeout;
    WakeAwaiting();
    ++awaiting_;
    while (WaitUntil(changed_, deadline) && !condition.Eval()) {
    }
    --awaiting_;
    return condition.Eval();
  }

 private:
  friend class CondVar;

  // What they wait for may have come true. Before the mutex is released: after it, it may be gone.
  void WakeAwaiting() {
    if (awaiting_ > 0) changed_.notify_all();
  }

  // False when the deadline has passed. Looks up now and then, so that no deadline is too far for the clock's
  // type.
  bool WaitUntil(std::condition_variable& variable, absl::Time deadline) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return false;
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    variable.wait_for(lock, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
    lock.release();
    return MonotonicNow() < deadline;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Threads in AwaitWithTimeout; under the mutex.
  int awaiting_ = 0;
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
  // True when the deadline, by MonotonicNow(), has passed. May return before without a signal.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
    mutex->WakeAwaiting();
    return !mutex->WaitUntil(variable_, deadline);
  }
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
    return WaitWithDeadline(mutex, MonotonicNow() + timeout);
  }

 private:
  std::condition_variable variable_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_MUTEX_H_
