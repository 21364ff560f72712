#include "router/core/policy/lpt/lpt.h"

#include <algorithm>
#include <numeric>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {
namespace {

WorkerIndex LeastLoaded(const FreeCapacity& free, const WaitingView& request) {
  return LeastKey(free, request, [](const WorkerView& worker) { return worker.load_tokens; });
}

}  // namespace

void LptPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  if (PlaceLargestFirst(snapshot, decision.assignments)) return;
  decision.assignments.clear();
  free_.Reset(snapshot);
  PlaceInOrder(snapshot, free_, decision.assignments,
               [&](const WaitingView& request) { return LeastLoaded(free_, request); });
}

// False when one of the oldest U does not fit.
bool LptPolicy::PlaceLargestFirst(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  order_.resize(std::min<size_t>(snapshot.waiting.size(), free_.free_slots()));
  std::iota(order_.begin(), order_.end(), 0);
  // All of them get a slot, so any order of equals is correct; it changes a run's imbalance by 2 %.
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const int64_t s_a = snapshot.waiting[a].prefill_tokens, s_b = snapshot.waiting[b].prefill_tokens;
    return s_a != s_b ? s_a > s_b : a > b;
  });
  for (int32_t i : order_) {
    const WorkerIndex worker = LeastLoaded(free_, snapshot.waiting[i]);
    if (worker == kNoWorker) return false;
    free_.Take(snapshot.waiting[i], worker);
    plan.push_back({i, worker});
  }
  return true;
}

}  // namespace bfio::core
