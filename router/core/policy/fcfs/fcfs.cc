#include "router/core/policy/fcfs/fcfs.h"

namespace bfio::core {

void FcfsPolicy::Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  room_.Reset(snapshot);
  PlaceInOrder(snapshot, room_, plan, [&](const WaitingView& request) {
    return LeastKey(room_, request, [](const WorkerView& worker) { return -worker.free_slots; });
  });
}

}  // namespace bfio::core
