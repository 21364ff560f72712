// Shared code of policies that place one request after the other. Threads: any, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

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

// Takes the assignments from `free` and removes those that break the contract of Policy::Decide: a plan that
// overfills a worker or contains a request twice would corrupt all accounts. Returns their number.
inline int64_t RemoveViolations(absl::Span<const WaitingView> waiting, FreeCapacity& free,
                                std::vector<Assignment>& assignments) {
  std::vector<char> taken(waiting.size(), 0);
  return static_cast<int64_t>(std::erase_if(assignments, [&](const Assignment& a) {
    if (a.waiting_index < 0 || a.waiting_index >= std::ssize(taken) || taken[a.waiting_index]) return true;
    if (a.worker < 0 || a.worker >= free.workers()) return true;
    if (!free.Fits(waiting[a.waiting_index], a.worker)) return true;
    free.Take(waiting[a.waiting_index], a.worker);
    taken[a.waiting_index] = 1;
    return false;
  }));
}

}  // namespace bfio::core
