// The rule that keeps KV from starving a request, the same for every policy.
//
// Purpose: a request that fits no worker now (slots are free, KV is not) is passed over, so that small
// requests do not wait behind it. But the oldest such request that has waited long enough *holds* a worker:
// of the workers with a free slot and KV enough in all, the one with most unreserved KV (ties: lowest index)
// takes no other request. A held worker only drains, so the most unreserved KV among those does not shrink
// from one step to the next, and grows until the request fits, when the last of its residents has ended at
// the latest. Then it is placed before the policy runs. A policy would treat it as an ordinary candidate, and
// might always prefer others. One request holds at a time.
//
// Threads: the scheduler's. Pure. Cost: O(waiting * G) per decision while requests are kept out by KV, else
// O(waiting).
#ifndef BFIO_ROUTER_CORE_SCHEDULER_KV_HOLD_H_
#define BFIO_ROUTER_CORE_SCHEDULER_KV_HOLD_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Steps a request must have waited before it may hold a worker: long enough that ordinary turnover usually
// frees memory by itself (mean output lengths of public traces are 60 to 250 tokens), short against any
// deadline.
inline constexpr int64_t kHoldAfterSteps = 64;

class KvHold {
 public:
  // REQUIRES: after_steps >= 1.
  explicit KvHold(int64_t after_steps) : after_steps_(after_steps) {}

  // Where the holder goes now: of the workers it fits the one with most unreserved KV. The hold ends then, or
  // when the request no longer waits.
  std::optional<Assignment> Serve(absl::Span<const WaitingView> waiting, const FreeCapacity& free);
  // Chooses a holder where there is none, and closes the worker that it holds.
  void Close(int64_t step, absl::Span<const WaitingView> waiting, FreeCapacity& free);

  std::optional<RequestId> holder() const { return holder_; }
  void SetHolder(std::optional<RequestId> holder) { holder_ = holder; }

 private:
  const int64_t after_steps_;
  std::optional<RequestId> holder_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_KV_HOLD_H_
