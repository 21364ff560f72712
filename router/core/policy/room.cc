#include "router/core/policy/room.h"

#include <algorithm>

namespace bfio::core {

void Room::Reset(const Snapshot& snapshot) {
  workers_.assign(snapshot.workers.begin(), snapshot.workers.end());
  slots_left_ = 0;
  for (const WorkerView& worker : workers_) slots_left_ += worker.free_slots;
  HoldForOverdue(snapshot);
}

void Room::HoldForOverdue(const Snapshot& snapshot) {
  int64_t most_free = -1, most_total = -1;
  for (const WorkerView& worker : workers_) {
    if (worker.free_slots <= 0) continue;
    most_free = std::max(most_free, worker.free_kv_tokens);
    most_total = std::max(most_total, worker.total_kv_tokens);
  }
  for (const WaitingView& request : snapshot.waiting) {
    if (request.kv_reserve_tokens <= most_free || request.kv_reserve_tokens > most_total) continue;
    if (snapshot.step - request.enqueued_step < kHoldAfterSteps) continue;
    const WorkerIndex held = MostFreeThatCouldHold(request.kv_reserve_tokens);
    slots_left_ -= workers_[held].free_slots;
    workers_[held].free_slots = 0;
    return;
  }
}

WorkerIndex Room::MostFreeThatCouldHold(int64_t kv_tokens) const {
  WorkerIndex most = kNoWorker;
  for (WorkerIndex g = 0; g < workers(); ++g) {
    if (workers_[g].free_slots <= 0 || workers_[g].total_kv_tokens < kv_tokens) continue;
    if (most == kNoWorker || workers_[g].free_kv_tokens > workers_[most].free_kv_tokens) most = g;
  }
  return most;
}

void Room::Take(const WaitingView& request, WorkerIndex worker) {
  WorkerView& view = workers_[worker];
  view.load_tokens += request.prefill_tokens;
  view.free_kv_tokens -= request.kv_reserve_tokens;
  ++view.active;
  --view.free_slots;
  --slots_left_;
}

}  // namespace bfio::core
