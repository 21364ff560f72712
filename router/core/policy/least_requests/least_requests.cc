#include "router/core/policy/least_requests/least_requests.h"

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void LeastRequestsPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  const WorkerIndex workers = free_.workers();
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    WorkerIndex best = kNoWorker;
    for (WorkerIndex turn = 0; turn < workers; ++turn) {
      const WorkerIndex g = (next_ + turn) % workers;
      if (free_.Fits(request, g) && (best == kNoWorker || free_[g].active < free_[best].active)) best = g;
    }
    if (best != kNoWorker) next_ = (best + 1) % workers;
    return best;
  });
}

}  // namespace bfio::core
