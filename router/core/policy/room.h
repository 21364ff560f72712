// What room the workers have left while a plan is being made, and the rule that keeps KV from starving
// anybody.
//
// A request fits a worker that has a slot, and either so much KV unreserved as it may come to need, or room
// for it at every time to come as admission sees it (model/kv_room.h).
//
// The rule, the same for every policy. A request that fits no worker now (slots are free, KV is not) is
// passed over, so that small requests do not wait behind it. But the oldest such request that has waited
// Snapshot::hold_after_steps *holds* a worker: of the workers with a free slot and KV enough in all, the one
// with most unreserved KV (ties: lowest index) takes nobody at this step. A held worker only drains, so the
// most unreserved KV among those does not shrink from one step to the next, and grows until the request fits,
// when the last of its residents has ended at the latest; then it is an ordinary candidate.
//
// Ownership: borrows nothing; kept by a policy and reused between decisions.
//
// Purpose: slots and KV are counted here, so that no policy can over-fill a worker. Threads: one.
#ifndef BFIO_ROUTER_CORE_POLICY_ROOM_H_
#define BFIO_ROUTER_CORE_POLICY_ROOM_H_

#include <cstdint>
#include <vector>

#include "router/core/model/snapshot.h"

namespace bfio::core {

// A pick that found nobody.
inline constexpr WorkerIndex kNoWorker = -1;

// Whom a worker is held for by the rule, before anybody is placed; null: nobody. `kv` is that of snapshot.kv.
const WaitingView* OverdueRequest(const Snapshot& snapshot, const KvRoom& kv);

class Room {
 public:
  // The room before any assignment, a held worker closed.
  void Reset(const Snapshot& snapshot);

  int32_t workers() const { return static_cast<int32_t>(workers_.size()); }
  // Load, active, free slots and free KV with this plan's assignments so far.
  const WorkerView& operator[](WorkerIndex worker) const { return workers_[worker]; }
  // Over all workers.
  int64_t slots_left() const { return slots_left_; }

  bool Fits(const WaitingView& request, WorkerIndex worker) const {
    return workers_[worker].free_slots > 0 && (request.kv_reserve_tokens <= workers_[worker].free_kv_tokens ||
                                               kv_.Fits(request.kv_need, worker));
  }

  // What is left for needs that are not reservations; valid until the next Take.
  KvOutlook kv() const { return kv_.Left(); }

  // REQUIRES: Fits.
  void Take(const WaitingView& request, WorkerIndex worker);

 private:
  void HoldForOverdue(const Snapshot& snapshot);
  // Where memory is what is short, most slots cannot be taken by anybody: searches need not look at them.
  void CloseUselessSlots(const Snapshot& snapshot);
  // Of the workers with a free slot and so much KV in all, the one with most free KV; kNoWorker if there is
  // none.
  WorkerIndex MostFreeThatCouldHold(int64_t kv_tokens) const;

  std::vector<WorkerView> workers_;
  KvRoom kv_;
  int64_t slots_left_ = 0;
};

// The worker with the least key among those that can take the request (ties: lowest index), or kNoWorker.
template <class Key>
WorkerIndex LeastKey(const Room& room, const WaitingView& request, Key key) {
  WorkerIndex best = kNoWorker;
  for (WorkerIndex g = 0; g < room.workers(); ++g) {
    if ((best == kNoWorker || key(room[g]) < key(room[best])) && room.Fits(request, g)) best = g;
  }
  return best;
}

// Offers the requests in pool order to `pick(request)`, which returns a worker that fits, or kNoWorker only
// when none does. Appends to `plan`.
template <class Pick>
void PlaceInOrder(const Snapshot& snapshot, Room& room, std::vector<Assignment>& plan, Pick pick) {
  const int32_t waiting = static_cast<int32_t>(snapshot.waiting.size());
  KvRefusals refusals;
  refusals.Reset(snapshot.kv);
  for (int32_t i = 0; i < waiting && room.slots_left() > 0; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    if (refusals.Refused(request.kv_need, request.kv_reserve_tokens)) continue;
    const WorkerIndex worker = pick(request);
    if (worker == kNoWorker) {
      refusals.Note(request.kv_need, request.kv_reserve_tokens);
      continue;
    }
    room.Take(request, worker);
    plan.push_back({i, worker});
  }
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_ROOM_H_
