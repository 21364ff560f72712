// The mailbox of a thread that owns state: many senders, one receiver. Changes of the state are posted here
// as closures and run by the thread that owns it. Threads: Post from any thread; WaitAndTake only from the
// receiver. PostBounded refuses beyond a limit. There are two lanes: events of PostAhead never wait behind
// those of Post. Waits by the monotonic clock (see common/base/mutex.h), so that setting the clock back
// delays no timeout.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace bfio {

class EventQueue {
 public:
  using Event = absl::AnyInvocable<void() &&>;

  // False after Close: the event was not added.
  bool Post(Event event) { return PostBounded(std::move(event), SIZE_MAX); }

  // False after Close or when `limit` events are waiting.
  bool PostBounded(Event event, size_t limit) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || events_.size() >= limit) return false;
      events_.push_back(std::move(event));
    }
    ready_.notify_one();
    return true;
  }

  // Posts to the lane that the receiver takes first. False after Close.
  bool PostAhead(Event event) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      ahead_.push_back(std::move(event));
    }
    ready_.notify_one();
    return true;
  }

  // Moves all waiting events into `ahead` and `out` (cleared first); waits up to `timeout` for the first one.
  void WaitAndTake(absl::Duration timeout, std::vector<Event>& ahead, std::vector<Event>& out) {
    ahead.clear();
    out.clear();
    std::unique_lock lock(mutex_);
    // Longer waits would overflow the clock's type; a receiver that is woken without an event waits again.
    const auto bounded = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(1)));
    ready_.wait_for(lock, bounded, [this] { return closed_ || !events_.empty() || !ahead_.empty(); });
    ahead.swap(ahead_);
    out.swap(events_);
  }
  // For a queue without PostAhead.
  void WaitAndTake(absl::Duration timeout, std::vector<Event>& out) {
    std::vector<Event> none;
    WaitAndTake(timeout, none, out);
  }

  bool closed() {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  // Refuses later posts; waiting events can still be taken.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<Event> ahead_, events_;
  bool closed_ = false;
};

}  // namespace bfio
