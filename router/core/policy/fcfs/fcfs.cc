#include "router/core/policy/fcfs/fcfs.h"

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void FcfsPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    return LeastKey(free_, request, [](const WorkerView& worker) { return -worker.free_slots; });
  });
}

}  // namespace bfio::core
