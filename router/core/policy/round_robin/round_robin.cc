#include "router/core/policy/round_robin/round_robin.h"

namespace bfio::core {

void RoundRobinPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  const WorkerIndex workers = room_.workers();
  PlaceInOrder(snapshot, room_, decision.assignments, [&](const WaitingView& request) {
    for (WorkerIndex turn = 0; turn < workers; ++turn) {
      const WorkerIndex g = (next_ + turn) % workers;
      if (!room_.Fits(request, g)) continue;
      next_ = (g + 1) % workers;
      return g;
    }
    return kNoWorker;
  });
}

}  // namespace bfio::core
