#include "router/core/policy/round_robin/round_robin.h"

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void RoundRobinPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  const WorkerIndex workers = free_.workers();
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    for (WorkerIndex turn = 0; turn < workers; ++turn) {
      const WorkerIndex g = (next_ + turn) % workers;
      if (!free_.Fits(request, g)) continue;
      next_ = (g + 1) % workers;
      return g;
    }
    return kNoWorker;
  });
}

}  // namespace bfio::core
