#include "router/core/policy/fcfs/fcfs.h"

namespace bfio::core {

void FcfsPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  PlaceInOrder(snapshot, room_, decision.assignments, [&](const WaitingView& request) {
    return LeastKey(room_, request, [](const WorkerView& worker) { return -worker.free_slots; });
  });
}

}  // namespace bfio::core
