#include "router/core/policy/chain_rule/chain_rule.h"

#include <algorithm>
#include <numeric>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

ChainRulePolicy::ChainRulePolicy(absl::string_view rule, uint64_t seed)
    : name_(rule), rule_(*MakeChainDispatcher(rule, seed)) {}

void ChainRulePolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  order_.resize(snapshot.workers.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](WorkerIndex a, WorkerIndex b) {
    return snapshot.workers[a].service_time < snapshot.workers[b].service_time;
  });
  chains_.resize(order_.size());
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    for (size_t k = 0; k < order_.size(); ++k) {
      const WorkerView& worker = free_[order_[k]];
      const int64_t slots = std::max<int64_t>(1, int64_t{worker.active} + worker.free_slots);
      chains_[k] = {1 / worker.service_time, slots, free_.Fits(request, order_[k]) ? worker.active : slots};
    }
    const int32_t chosen = rule_->OnArrival(chains_);
    return chosen == kCentralQueue ? kNoWorker : order_[chosen];
  });
}

}  // namespace bfio::core
