#include "router/core/policy/fastest_free/fastest_free.h"

#include <algorithm>
#include <numeric>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

absl::string_view FastestFreePolicy::name() const {
  switch (rule_) {
    case Rule::kJffc:
      return "jffc";
    case Rule::kSaJsq:
      return "sa_jsq";
    case Rule::kJiq:
      break;
  }
  return "jiq";
}

int32_t FastestFreePolicy::Choose() {
  switch (rule_) {
    case Rule::kJffc:
      return FastestFree(units_);
    case Rule::kSaJsq:
      return FewestJobsFree(units_);
    case Rule::kJiq:
      break;
  }
  return IdleFree(units_, rng_);
}

void FastestFreePolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  order_.resize(snapshot.workers.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](WorkerIndex a, WorkerIndex b) {
    return snapshot.workers[a].service_time < snapshot.workers[b].service_time;
  });
  units_.resize(order_.size());
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    for (size_t k = 0; k < order_.size(); ++k) {
      const WorkerView& worker = free_[order_[k]];
      const int64_t slots = std::max<int64_t>(1, int64_t{worker.active} + worker.free_slots);
      units_[k] = {1 / worker.service_time, slots, free_.Fits(request, order_[k]) ? worker.active : slots};
    }
    const int32_t chosen = Choose();
    return chosen == kCentralQueue ? kNoWorker : order_[chosen];
  });
}

}  // namespace bfio::core
