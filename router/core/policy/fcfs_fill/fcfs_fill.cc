#include "router/core/policy/fcfs_fill/fcfs_fill.h"

namespace bfio::core {

void FcfsFillPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  PlaceInOrder(snapshot, room_, decision.assignments, [&](const WaitingView& request) {
    return LeastKey(room_, request, [](const WorkerView&) { return 0; });
  });
}

}  // namespace bfio::core
