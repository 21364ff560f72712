// A mutex with conditions, and a condition variable, that wait by the monotonic clock: the interface of
// absl::Mutex (the part that bfio uses, with absl::Condition) on top of std::mutex. Debian 12's abseil sleeps
// until a wall-clock time: if the clock is set back by an hour, its timed waits take an hour longer. The
// waits below do not. Deadlines are times of MonotonicNow(). ThreadSanitizer supports this mutex, but not an
// abseil that is not instrumented. Threads: any. As with absl's, the last user of a Mutex may destroy it.
#pragma once

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
  // This function and the next release the mutex while they wait. `condition` is evaluated by the thread that
  // releases the mutex, as in absl, so it may read only what the mutex guards.
  void Await(const absl::Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    AwaitWithTimeout(condition, absl::InfiniteDuration());
  }
  // True when the condition holds.
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    if (condition.Eval()) return true;
    const absl::Time deadline = MonotonicNow() + timeout;
    WakeAwaiting();
    Awaiter me{&condition, awaiting_, {}};
    awaiting_ = &me;
    while (WaitUntil(me.woken, deadline) && !condition.Eval()) {
    }
    Awaiter** at = &awaiting_;
    while (*at != &me) at = &(*at)->next;
    *at = me.next;
    return condition.Eval();
  }

 private:
  friend class CondVar;

  // A thread that waits in AwaitWithTimeout; on its stack.
  struct Awaiter {
    const absl::Condition* condition;
    Awaiter* next;
    std::condition_variable woken;
  };

  // Call before the mutex is released: afterwards the mutex may already be destroyed.
  void WakeAwaiting() {
    for (Awaiter* one = awaiting_; one != nullptr; one = one->next) {
      if (one->condition->Eval()) one->woken.notify_one();
    }
  }

  // False when the deadline has passed.
  bool WaitUntil(std::condition_variable& variable, absl::Time deadline) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return false;
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    // Longer waits would overflow the clock's type; a spurious wake-up waits again.
    variable.wait_for(lock, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
    lock.release();
    return MonotonicNow() < deadline;
  }

  std::mutex mutex_;
  // Guarded by the mutex.
  Awaiter* awaiting_ = nullptr;
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
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    WaitWithDeadline(mutex, absl::InfiniteFuture());
  }
  // True when the deadline, by MonotonicNow(), has passed, also for a thread that was signalled late: check
  // the awaited event first. May return early without a signal.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    mutex->WakeAwaiting();
    return !mutex->WaitUntil(variable_, deadline);
  }
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return WaitWithDeadline(mutex, MonotonicNow() + timeout);
  }

 private:
  std::condition_variable variable_;
};

}  // namespace bfio
