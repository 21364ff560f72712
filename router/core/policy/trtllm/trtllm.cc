#include "router/core/policy/trtllm/trtllm.h"

#include <algorithm>

#include "router/core/policy/least_first.h"
#include "router/core/policy/place_in_order.h"

namespace bfio::core {
namespace {

// Requests between two checks of the deadline: about 10 us in groups of 256 where KV memory is short.
constexpr size_t kCountsStopEvery = 8;

}  // namespace

void TrtllmPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  OrderLongestFirst(
      snapshot, std::min<size_t>(snapshot.waiting.size(), static_cast<size_t>(free_.free_slots())), order_);
  placed_.assign(snapshot.waiting.size(), 0);
  PlaceLongestFirst(snapshot, decision);
  PlaceRest(snapshot, decision);
}

bool TrtllmPolicy::Stopped(size_t request, Decision& decision) const {
  if (!decision.stopped_early && request % kCountsStopEvery == kCountsStopEvery - 1 && stop_ && stop_()) {
    decision.stopped_early = true;
  }
  return decision.stopped_early;
}

int32_t TrtllmPolicy::Cap() const {
  int64_t requests = static_cast<int64_t>(order_.size());
  int32_t most = 0;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    requests += free_[g].active;
    most = std::max(most, free_[g].active);
  }
  const int64_t ranks = std::max(1, free_.workers());
  return std::max(most, static_cast<int32_t>((requests + ranks - 1) / ranks));
}

void TrtllmPolicy::PlaceLongestFirst(const Snapshot& snapshot, Decision& decision) {
  // A rank at its cap leaves the heap.
  LeastFirst least(free_, Cap(),
                   [](const WorkerView& rank) { return std::make_pair(rank.load_tokens, rank.active); });
  for (size_t at = 0; at < order_.size(); ++at) {
    // Unless KV memory is short, the request fits the first worker, and the rest takes no longer than any
    // other rule.
    const bool kv_short = least.looks() > 2 * static_cast<int64_t>(at) + free_.workers();
    if (kv_short && Stopped(at, decision)) return;
    const int32_t i = order_[at];
    const WorkerIndex rank = least.Take(snapshot.waiting[i]);
    if (rank == kNoWorker) continue;
    decision.assignments.push_back({i, rank});
    placed_[i] = 1;
  }
}

void TrtllmPolicy::PlaceRest(const Snapshot& snapshot, Decision& decision) {
  for (int32_t i = 0; i < static_cast<int32_t>(placed_.size()) && free_.free_slots() > 0; ++i) {
    if (placed_[i]) continue;
    if (Stopped(static_cast<size_t>(i), decision)) return;
    const WorkerIndex rank =
        LeastKey(free_, snapshot.waiting[i], [](const WorkerView& view) { return view.load_tokens; });
    if (rank == kNoWorker) continue;
    free_.Take(snapshot.waiting[i], rank);
    decision.assignments.push_back({i, rank});
  }
}

}  // namespace bfio::core
