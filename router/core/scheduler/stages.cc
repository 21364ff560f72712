#include "router/core/scheduler/stages.h"

#include <algorithm>
#include <limits>

#include "router/core/policy/fair_order.h"
#include "router/core/scheduler/waiting_pool.h"

namespace bfio::core {
namespace {

void Assign(absl::Span<const WaitingView> requests, size_t index, WorkerIndex worker, FreeCapacity& free,
            std::vector<Assignment>& assignments) {
  free.Take(requests[index], worker);
  assignments.push_back({static_cast<int32_t>(index), worker});
}

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

// A worker that is closed while it empties costs as much as several requests, and where all wait for memory,
// most would soon have waited for any fixed time. A request that engines refused too often has waited before.
int64_t HoldAfter(const StageInput& input, const WaitingView& request) {
  double longest = 0;
  for (const ClassWait& wait : input.first_come) {
    if (wait.priority == request.priority && !request.reserves_kv)
      longest = kLongestWait * static_cast<double>(wait.p99);
  }
  return std::max(input.hold_after_steps, static_cast<int64_t>(longest));
}

}  // namespace

void PlaceHeld(const StageInput& input, FreeCapacity& free, std::vector<Assignment>& assignments) {
  if (input.held.empty()) return;
  // The requests of `waiting` that could take the free slots.
  std::vector<const WaitingView*> rivals;
  const int64_t slots = free.free_slots() + input.slots_elsewhere;
  for (size_t i = 0; i < input.waiting.size() && std::ssize(rivals) < slots; ++i) {
    if (free.FitsSomewhere(input.waiting[i])) rivals.push_back(&input.waiting[i]);
  }
  std::vector<char> waits(static_cast<size_t>(free.workers()), 0);
  WorkerIndex closed = kNoWorker;
  for (size_t i = 0; i < input.held.size(); ++i) {
    const WaitingView& request = input.held[i];
    const WorkerIndex rank = request.held_to;
    if (waits[rank]) continue;
    const int64_t left = free.free_slots() + input.slots_elsewhere;
    const bool deferred = left == 0 || (std::ssize(rivals) >= left &&
                                        !Precedes(request, *rivals[static_cast<size_t>(left) - 1]));
    if (!deferred && free.Fits(request, rank)) {
      Assign(input.held, i, rank, free, assignments);
      continue;
    }
    waits[rank] = 1;
    const bool lacks_memory = free[rank].free_slots > 0 && free[rank].CouldHold(request.kv_reserve_tokens);
    if (!deferred && lacks_memory && closed == kNoWorker &&
        input.step - request.enqueued_step >= input.hold_after_steps) {
      closed = rank;
    }
  }
  if (closed != kNoWorker) free.LimitSlots(closed, 0);
}

void PlaceAlone(const StageInput& input, FreeCapacity& free, std::vector<Assignment>& assignments) {
  for (size_t i = 0; i < input.waiting.size(); ++i) {
    if (!input.waiting[i].runs_alone) continue;
    const WorkerIndex emptiest =
        LeastKey(free, input.waiting[i], [](const WorkerView& worker) { return worker.active; });
    if (emptiest != kNoWorker) Assign(input.waiting, i, emptiest, free, assignments);
  }
}

void KvHold::Place(const StageInput& input, FreeCapacity& free, std::vector<Assignment>& assignments) {
  const absl::Span<const WaitingView> waiting = input.waiting;
  size_t placed = waiting.size();
  if (holder_) {
    const auto it = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const WaitingView& request) { return request.id == *holder_; });
    const WorkerIndex fits =
        it == waiting.end() ? kNoWorker : MostFreeKv(free, [&](WorkerIndex g) { return free.Fits(*it, g); });
    if (fits != kNoWorker) {
      placed = static_cast<size_t>(it - waiting.begin());
      Assign(waiting, placed, fits, free, assignments);
    }
    // It may also be cancelled, placed by another group, or no longer among the first requests.
    if (fits != kNoWorker || it == waiting.end()) holder_.reset();
  }
  int64_t most_free = std::numeric_limits<int64_t>::min();
  for (const WorkerView& worker : free.views()) {
    if (worker.free_slots > 0) most_free = std::max(most_free, worker.free_kv_tokens);
  }
  for (size_t i = 0; i < waiting.size(); ++i) {
    const WaitingView& request = waiting[i];
    if (i == placed) continue;
    if (holder_ ? request.id != *holder_
                : request.kv_reserve_tokens <= most_free ||
                      input.step - request.enqueued_step < HoldAfter(input, request)) {
      continue;
    }
    const WorkerIndex held =
        MostFreeKv(free, [&](WorkerIndex g) { return free[g].CouldHold(request.kv_reserve_tokens); });
    if (!holder_ && (held == kNoWorker || free.FitsSomewhere(request))) continue;
    holder_ = request.id;
    if (held != kNoWorker) free.LimitSlots(held, 0);
    return;
  }
}

}  // namespace bfio::core
