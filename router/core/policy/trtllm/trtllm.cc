#include "router/core/policy/trtllm/trtllm.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void TrtllmPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  order_.resize(std::min<size_t>(snapshot.waiting.size(), static_cast<size_t>(free_.free_slots())));
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  placed_.assign(snapshot.waiting.size(), 0);
  PlaceLongestFirst(snapshot, decision.assignments);
  PlaceRest(snapshot, decision.assignments);
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

void TrtllmPolicy::PlaceLongestFirst(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  const int32_t cap = Cap();
  // A rank at its cap comes behind all others, and is not taken.
  const auto key = [&](const WorkerView& rank) {
    constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
    return std::make_pair(rank.active < cap ? rank.load_tokens : kLast, rank.active);
  };
  for (int32_t i : order_) {
    const WorkerIndex rank = LeastKey(free_, snapshot.waiting[i], key);
    if (rank == kNoWorker || free_[rank].active >= cap) continue;
    free_.Take(snapshot.waiting[i], rank);
    plan.push_back({i, rank});
    placed_[i] = 1;
  }
}

void TrtllmPolicy::PlaceRest(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  for (int32_t i = 0; i < static_cast<int32_t>(placed_.size()) && free_.free_slots() > 0; ++i) {
    if (placed_[i]) continue;
    const WorkerIndex rank =
        LeastKey(free_, snapshot.waiting[i], [](const WorkerView& view) { return view.load_tokens; });
    if (rank == kNoWorker) continue;
    free_.Take(snapshot.waiting[i], rank);
    plan.push_back({i, rank});
  }
}

}  // namespace bfio::core
