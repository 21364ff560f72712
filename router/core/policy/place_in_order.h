// Shared code of policies that place one request after the other. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_POLICY_PLACE_IN_ORDER_H_
#define BFIO_ROUTER_CORE_POLICY_PLACE_IN_ORDER_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// The worker with the least key among those that can take the request (ties: lowest index), or kNoWorker.
template <class Key>
WorkerIndex LeastKey(const FreeCapacity& free, const WaitingView& request, Key key) {
  WorkerIndex best = kNoWorker;
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    if ((best == kNoWorker || key(free[g]) < key(free[best])) && free.Fits(request, g)) best = g;
  }
  return best;
}

// Offers the requests in pool order to `pick(request)`, which returns a worker that fits, or kNoWorker only
// when none does. Appends to `plan`.
template <class Pick>
void PlaceInOrder(const Snapshot& snapshot, FreeCapacity& free, std::vector<Assignment>& plan, Pick pick) {
  const int32_t waiting = static_cast<int32_t>(snapshot.waiting.size());
  KvRefusals refusals;
  refusals.Reset(snapshot.kv);
  for (int32_t i = 0; i < waiting && free.free_slots() > 0; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    if (refusals.Refused(request.kv_need, request.kv_reserve_tokens)) continue;
    const WorkerIndex worker = pick(request);
    if (worker == kNoWorker) {
      refusals.Note(request.kv_need, request.kv_reserve_tokens);
      continue;
    }
    free.Take(request, worker);
    plan.push_back({i, worker});
  }
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_PLACE_IN_ORDER_H_
