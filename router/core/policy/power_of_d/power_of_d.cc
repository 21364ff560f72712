#include "router/core/policy/power_of_d/power_of_d.h"

#include <algorithm>
#include <utility>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void PowerOfDPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  PlaceInOrder(snapshot, free_, decision.assignments,
               [&](const WaitingView& request) { return Pick(request); });
}

WorkerIndex PowerOfDPolicy::Pick(const WaitingView& request) {
  candidates_.clear();
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    if (free_.Fits(request, g)) candidates_.push_back(g);
  }
  const size_t draws = std::min(candidates_.size(), static_cast<size_t>(choices_));
  WorkerIndex best = kNoWorker;
  for (size_t drawn = 0; drawn < draws; ++drawn) {
    // The ones drawn are moved to the front, so that none is drawn twice.
    std::swap(candidates_[drawn], candidates_[drawn + rng_.Below(candidates_.size() - drawn)]);
    const WorkerIndex g = candidates_[drawn];
    if (best == kNoWorker || free_[g].active < free_[best].active) best = g;
  }
  return best;
}

}  // namespace bfio::core
