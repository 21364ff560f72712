#include "router/core/policy/least_requests/least_requests.h"

namespace bfio::core {

void LeastRequestsPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  const WorkerIndex workers = room_.workers();
  PlaceInOrder(snapshot, room_, decision.assignments, [&](const WaitingView& request) {
    WorkerIndex best = kNoWorker;
    for (WorkerIndex turn = 0; turn < workers; ++turn) {
      const WorkerIndex g = (next_ + turn) % workers;
      if (room_.Fits(request, g) && (best == kNoWorker || room_[g].active < room_[best].active)) best = g;
    }
    if (best != kNoWorker) next_ = (best + 1) % workers;
    return best;
  });
}

}  // namespace bfio::core
