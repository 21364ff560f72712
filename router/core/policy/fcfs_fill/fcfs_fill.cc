#include "router/core/policy/fcfs_fill/fcfs_fill.h"

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void FcfsFillPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    return LeastKey(free_, request, [](const WorkerView&) { return 0; });
  });
}

}  // namespace bfio::core
