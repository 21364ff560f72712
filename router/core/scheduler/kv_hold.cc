#include "router/core/scheduler/kv_hold.h"

#include <algorithm>
#include <limits>

namespace bfio::core {
namespace {

// The worker with most unreserved KV among those with a free slot for which `may(worker)` holds.
template <class May>
WorkerIndex MostFreeKv(const FreeCapacity& free, May may) {
  WorkerIndex most = kNoWorker;
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    if (free[g].free_slots <= 0 || !may(g)) continue;
    if (most == kNoWorker || free[g].free_kv_tokens > free[most].free_kv_tokens) most = g;
  }
  return most;
}

WorkerIndex CouldHold(const FreeCapacity& free, const WaitingView& request) {
  return MostFreeKv(free, [&](WorkerIndex g) { return free[g].CouldHold(request.kv_reserve_tokens); });
}

}  // namespace

std::optional<Assignment> KvHold::Serve(absl::Span<const WaitingView> waiting, const FreeCapacity& free) {
  if (!holder_) return std::nullopt;
  const auto it = std::find_if(waiting.begin(), waiting.end(),
                               [&](const WaitingView& request) { return request.id == *holder_; });
  if (it == waiting.end()) {  // cancelled, placed by another group, or no longer in the window
    holder_.reset();
    return std::nullopt;
  }
  const WorkerIndex worker = MostFreeKv(free, [&](WorkerIndex g) { return free.Fits(*it, g); });
  if (worker == kNoWorker) return std::nullopt;
  holder_.reset();
  return Assignment{static_cast<int32_t>(it - waiting.begin()), worker};
}

void KvHold::Close(int64_t step, absl::Span<const WaitingView> waiting, FreeCapacity& free) {
  int64_t most_free = std::numeric_limits<int64_t>::min();
  for (const WorkerView& worker : free.views()) {
    if (worker.free_slots > 0) most_free = std::max(most_free, worker.free_kv_tokens);
  }
  for (const WaitingView& request : waiting) {
    if (holder_ ? request.id != *holder_
                : request.kv_reserve_tokens <= most_free || step - request.enqueued_step < after_steps_) {
      continue;
    }
    const WorkerIndex held = CouldHold(free, request);
    if (!holder_ && (held == kNoWorker || free.FitsSomewhere(request))) continue;
    holder_ = request.id;
    if (held != kNoWorker) free.LimitSlots(held, 0);
    return;
  }
}

}  // namespace bfio::core
