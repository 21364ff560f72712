// Deadlines of requests that have never been placed, or that workers refuse.
//
// Purpose: the bound on the time in the waiting pool (--max_queue_time). Each request has a deadline
// from its arrival to its first placement or its end, whichever comes first; all requests may wait
// equally long. A request that a worker refuses after that has a deadline again, counted from the first
// refusal. A client's own deadline may end the request earlier. Threads: the decision thread's; time is
// passed in.
#ifndef BFIO_ROUTER_REQUESTS_QUEUE_DEADLINES_H_
#define BFIO_ROUTER_REQUESTS_QUEUE_DEADLINES_H_

#include <optional>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "router/requests/request_table.h"

namespace bfio::router {

class QueueDeadlines {
 public:
  // 0: no bound.
  explicit QueueDeadlines(absl::Duration longest) : longest_(longest) {}

  absl::Duration longest() const { return longest_; }

  // The request has waited since then.
  void Add(RequestRecord& record, absl::Time since) {
    if (longest_ <= absl::ZeroDuration()) return;
    Remove(record);
    record.queue_deadline = since + longest_;
    // Deadlines mostly ascend, so the new entry is usually the last one.
    waiting_.emplace_hint(waiting_.end(), *record.queue_deadline, record.id);
  }
  // The request is placed, or ends. Without effect where it has no deadline.
  void Remove(RequestRecord& record) {
    if (!record.queue_deadline) return;
    waiting_.erase({*record.queue_deadline, record.id});
    record.queue_deadline.reset();
  }

  // A request whose deadline has passed; it stays until Remove.
  std::optional<core::RequestId> Due(absl::Time now) const {
    if (waiting_.empty() || waiting_.begin()->first > now) return std::nullopt;
    return waiting_.begin()->second;
  }
  absl::Time next_deadline() const {
    return waiting_.empty() ? absl::InfiniteFuture() : waiting_.begin()->first;
  }

 private:
  const absl::Duration longest_;
  std::set<std::pair<absl::Time, core::RequestId>> waiting_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_QUEUE_DEADLINES_H_
