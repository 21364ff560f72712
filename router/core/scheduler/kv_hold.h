// The rule by which no request starves for lack of KV memory, the same for every policy. A request that fits
// no worker now is passed over, but the oldest one that has waited long enough *holds* a worker: of those
// that have a free slot and whose total KV memory suffices, the one with most unreserved KV (ties: lowest
// index) takes no other request until the request fits. It is then placed before the policy runs, because a
// policy might always prefer others. One request holds at a time. Threads: the scheduler's. Pure. Cost:
// O(waiting * G) per decision while requests are kept out by KV, else O(waiting).
#ifndef BFIO_ROUTER_CORE_SCHEDULER_KV_HOLD_H_
#define BFIO_ROUTER_CORE_SCHEDULER_KV_HOLD_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Steps that a request must have waited before it may hold a worker. In that time completions usually free
// memory anyway (mean output lengths of public traces are 60 to 250 tokens); it is short compared to any
// deadline.
inline constexpr int64_t kHoldAfterSteps = 64;

class KvHold {
 public:
  // REQUIRES: after_steps >= 1.
  explicit KvHold(int64_t after_steps) : after_steps_(after_steps) {}

  // Assigns the holder if it fits now: to the worker with most unreserved KV that it fits. The hold ends
  // then, or when the request no longer waits.
  std::optional<Assignment> Serve(absl::Span<const WaitingView> waiting, const FreeCapacity& free);
  // Chooses a holder if there is none, and closes the worker that it holds.
  void Close(int64_t step, absl::Span<const WaitingView> waiting, FreeCapacity& free);

  std::optional<RequestId> holder() const { return holder_; }
  void SetHolder(std::optional<RequestId> holder) { holder_ = holder; }

 private:
  const int64_t after_steps_;
  std::optional<RequestId> holder_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_KV_HOLD_H_
