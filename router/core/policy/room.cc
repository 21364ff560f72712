#include "router/core/policy/room.h"

namespace bfio::core {

void Room::Reset(const Snapshot& snapshot) {
  workers_.assign(snapshot.workers.begin(), snapshot.workers.end());
  slots_left_ = 0;
  for (const WorkerView& worker : workers_) slots_left_ += worker.free_slots;
  HoldForOverdue(snapshot);
}

void Room::HoldForOverdue(const Snapshot& snapshot) {
  WorkerIndex most = kNoWorker;
  for (WorkerIndex g = 0; g < workers(); ++g) {
    if (workers_[g].free_slots <= 0) continue;
    if (most == kNoWorker || workers_[g].free_kv_tokens > workers_[most].free_kv_tokens) most = g;
  }
  if (most == kNoWorker) return;
  for (const WaitingView& request : snapshot.waiting) {
    if (request.kv_reserve_tokens <= workers_[most].free_kv_tokens) continue;
    if (snapshot.step - request.enqueued_step < kHoldAfterSteps) continue;
    slots_left_ -= workers_[most].free_slots;
    workers_[most].free_slots = 0;
    return;
  }
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
