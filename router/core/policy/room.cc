#include "router/core/policy/room.h"

#include <algorithm>
#include <limits>

namespace bfio::core {

void Room::Reset(const Snapshot& snapshot) {
  workers_.assign(snapshot.workers.begin(), snapshot.workers.end());
  kv_.Reset(snapshot.kv);
  slots_left_ = 0;
  for (const WorkerView& worker : workers_) slots_left_ += worker.free_slots;
  HoldForOverdue(snapshot);
  if (!kv_.empty() && !snapshot.waiting.empty()) CloseUselessSlots(snapshot);
}

void Room::CloseUselessSlots(const Snapshot& snapshot) {
  const std::vector<int64_t> least = kv_.LeastNeed();
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const WaitingView& request : snapshot.waiting)
    smallest = std::min(smallest, std::max<int64_t>(1, request.kv_reserve_tokens));
  for (WorkerIndex g = 0; g < workers(); ++g) {
    WorkerView& worker = workers_[g];
    const int64_t most =
        std::max(kv_.MostThatFit(least, g), std::max<int64_t>(0, worker.free_kv_tokens) / smallest);
    const int32_t useless =
        worker.free_slots - static_cast<int32_t>(std::min<int64_t>(worker.free_slots, most));
    worker.free_slots -= useless;
    slots_left_ -= useless;
  }
}

const WaitingView* OverdueRequest(const Snapshot& snapshot, const KvRoom& kv) {
  int64_t most_free = std::numeric_limits<int64_t>::min(), most_total = -1;
  for (const WorkerView& worker : snapshot.workers) {
    if (worker.free_slots <= 0) continue;
    most_free = std::max(most_free, worker.free_kv_tokens);
    most_total = std::max(most_total, worker.total_kv_tokens);
  }
  const auto fits_somewhere = [&](const WaitingView& request) {
    for (size_t g = 0; g < snapshot.workers.size(); ++g) {
      if (snapshot.workers[g].free_slots > 0 && kv.Fits(request.kv_need, static_cast<WorkerIndex>(g))) {
        return true;
      }
    }
    return false;
  };
  for (const WaitingView& request : snapshot.waiting) {
    if (request.kv_reserve_tokens <= most_free || request.kv_reserve_tokens > most_total) continue;
    if (snapshot.step - request.enqueued_step < snapshot.hold_after_steps) continue;
    if (kv.empty() || !fits_somewhere(request)) return &request;
  }
  return nullptr;
}

void Room::HoldForOverdue(const Snapshot& snapshot) {
  const WaitingView* const overdue = OverdueRequest(snapshot, kv_);
  if (overdue == nullptr) return;
  const WorkerIndex held = MostFreeThatCouldHold(overdue->kv_reserve_tokens);
  slots_left_ -= workers_[held].free_slots;
  workers_[held].free_slots = 0;
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
  view.time_offset += view.prefill_weight * static_cast<double>(request.prefill_tokens);
  view.free_kv_tokens -= request.kv_reserve_tokens;
  kv_.Put(request.kv_need, worker, +1);
  ++view.active;
  --view.free_slots;
  --slots_left_;
}

}  // namespace bfio::core
