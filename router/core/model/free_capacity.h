// The slots and KV memory that workers have left while a decision is made. The one account of free capacity.
// Policies, the solver, the scheduler's checks and the replay test here whether a request fits, and record
// their placements here, so that no decision can overfill a worker. A request fits a worker that takes
// sequences of its length, and has a free slot and either as many unreserved KV tokens as the request may
// need, or, by admission's estimate, memory for it at every future time (kv_capacity.h). Ownership: copies
// the workers, borrows the needs of the outlook; reused between decisions, allocates only to grow. Threads:
// one. Units: requests, tokens. Cost: O(1) per question, O(times * ways) with an outlook.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/kv_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

class FreeCapacity {
 public:
  void Reset(absl::Span<const WorkerView> workers, const KvOutlook& kv) {
    workers_.assign(workers.begin(), workers.end());
    kv_.Reset(kv);
    free_slots_ = 0;
    for (const WorkerView& worker : workers_) free_slots_ += worker.free_slots;
  }
  void Reset(const Snapshot& snapshot) { Reset(snapshot.workers, snapshot.kv); }

  int32_t workers() const { return static_cast<int32_t>(workers_.size()); }
  // The worker after the placements so far: load, active, free slots and unreserved KV tokens.
  const WorkerView& operator[](WorkerIndex worker) const { return workers_[worker]; }
  absl::Span<const WorkerView> views() const { return workers_; }
  // Sum over all workers.
  int64_t free_slots() const { return free_slots_; }
  // The outlook with the remaining capacity; valid until the next change.
  KvOutlook kv() const { return kv_.Left(); }

  bool Fits(const KvDemand& demand, WorkerIndex worker) const {
    return workers_[worker].free_slots > 0 && KvHolds(demand, worker);
  }
  bool Fits(const WaitingView& request, WorkerIndex worker) const { return Fits(request.kv(), worker); }
  bool FitsSomewhere(const WaitingView& request) const {
    for (WorkerIndex g = 0; g < workers(); ++g) {
      if (Fits(request, g)) return true;
    }
    return false;
  }
  // Whether the worker's memory could hold `coming` if `leaving`, which is placed there, were removed.
  bool KvHoldsInstead(const KvDemand& coming, const KvDemand& leaving, WorkerIndex worker) const {
    return coming.reserve_tokens < workers_[worker].max_sequence_tokens &&
           (coming.reserve_tokens <= workers_[worker].free_kv_tokens + leaving.reserve_tokens ||
            kv_.FitsInstead(coming.row, leaving.row, worker));
  }

  // Places a request that adds `tokens` to the worker's load. One that runs alone takes the other slots too.
  // REQUIRES: Fits.
  void Take(const KvDemand& demand, int64_t tokens, WorkerIndex worker) { Put(demand, tokens, worker, +1); }
  void Take(const WaitingView& request, WorkerIndex worker) {
    Take(request.kv(), request.prefill_tokens, worker);
    if (request.runs_alone) LimitSlots(worker, 0);
  }
  // Reverts Take.
  void Return(const KvDemand& demand, int64_t tokens, WorkerIndex worker) { Put(demand, tokens, worker, -1); }

  // Limits the worker to at most `slots` further requests.
  void LimitSlots(WorkerIndex worker, int64_t slots) {
    WorkerView& view = workers_[worker];
    const auto less = static_cast<int32_t>(std::min<int64_t>(view.free_slots, slots));
    free_slots_ -= view.free_slots - less;
    view.free_slots = less;
  }
  // Closes the free slots that no waiting request can use, so that searches skip them. Where memory is the
  // bottleneck, these are most of the free slots.
  void LimitSlotsToMemory(absl::Span<const WaitingView> waiting);

 private:
  bool KvHolds(const KvDemand& demand, WorkerIndex worker) const {
    return demand.reserve_tokens < workers_[worker].max_sequence_tokens &&
           (demand.reserve_tokens <= workers_[worker].free_kv_tokens || kv_.Fits(demand.row, worker));
  }
  void Put(const KvDemand& demand, int64_t tokens, WorkerIndex worker, int32_t sign) {
    WorkerView& view = workers_[worker];
    view.load_tokens += sign * tokens;
    view.free_kv_tokens -= sign * demand.reserve_tokens;
    view.active += sign;
    view.free_slots -= sign;
    free_slots_ -= sign;
    kv_.Put(demand.row, worker, sign);
  }

  std::vector<WorkerView> workers_;
  KvCapacity kv_;
  int64_t free_slots_ = 0;
};

// The worker with the least key among those that can take the request (ties: lowest index), or kNoWorker.
template <class Key>
WorkerIndex LeastKey(const FreeCapacity& free, const WaitingView& request, Key key) {
  WorkerIndex best = kNoWorker;
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    if ((best == kNoWorker || key(free[g]) < key(free[best])) && free.Fits(request, g)) best = g;
  }
  return best;
}

inline void FreeCapacity::LimitSlotsToMemory(absl::Span<const WaitingView> waiting) {
  if (kv_.empty() || waiting.empty()) return;
  const std::vector<int64_t> least = kv_.LeastNeed();
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const WaitingView& request : waiting)
    smallest = std::min(smallest, std::max<int64_t>(1, request.kv_reserve_tokens));
  for (WorkerIndex g = 0; g < workers(); ++g) {
    const int64_t reserved = std::max<int64_t>(0, workers_[g].free_kv_tokens) / smallest;
    LimitSlots(g, std::max(kv_.MostThatFit(least, g), reserved));
  }
}

}  // namespace bfio::core
