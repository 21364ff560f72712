// The mailbox of the decision thread: many senders, one receiver.
//
// Purpose: everything that changes scheduling state is posted here as a closure and run by the one thread
// that owns the state. Threads: Post from any thread; WaitAndTake from the receiver alone. Bounded:
// PostBounded refuses beyond a limit, for what strangers can cause at will (new requests). Worker messages
// are bounded by their sessions (WorkerSession stops reading), cancellations by the number of open streams.
#ifndef BFIO_ROUTER_SERVICE_EVENT_QUEUE_H_
#define BFIO_ROUTER_SERVICE_EVENT_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio::router {

class EventQueue {
 public:
  using Event = absl::AnyInvocable<void() &&>;

  // False after Close: the event was not taken.
  bool Post(Event event) { return PostBounded(std::move(event), SIZE_MAX); }

  // False after Close or when `limit` events are waiting.
  bool PostBounded(Event event, size_t limit) {
    MutexLock lock(&mutex_);
    if (closed_ || events_.size() >= limit) return false;
    events_.push_back(std::move(event));
    return true;
  }

  // Moves all waiting events into `out` (cleared first); waits up to `timeout` for the first one.
  void WaitAndTake(absl::Duration timeout, std::vector<Event>& out) {
    out.clear();
    MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &EventQueue::Ready), timeout);
    out.swap(events_);
  }

  // Later posts are refused; what is waiting can still be taken.
  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
  }

 private:
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !events_.empty(); }

  Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_EVENT_QUEUE_H_
