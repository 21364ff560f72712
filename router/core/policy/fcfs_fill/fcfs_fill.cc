#include "router/core/policy/fcfs_fill/fcfs_fill.h"

namespace bfio::core {

void FcfsFillPolicy::Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  room_.Reset(snapshot);
  PlaceInOrder(snapshot, room_, plan, [&](const WaitingView& request) {
    return LeastKey(room_, request, [](const WorkerView&) { return 0; });
  });
}

}  // namespace bfio::core
