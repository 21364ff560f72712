#include "router/core/policy/power_of_two/power_of_two.h"

namespace bfio::core {

void PowerOfTwoPolicy::Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  room_.Reset(snapshot);
  PlaceInOrder(snapshot, room_, plan, [&](const WaitingView& request) { return Pick(request); });
}

WorkerIndex PowerOfTwoPolicy::Pick(const WaitingView& request) {
  candidates_.clear();
  for (WorkerIndex g = 0; g < room_.workers(); ++g) {
    if (room_.Fits(request, g)) candidates_.push_back(g);
  }
  if (candidates_.empty()) return kNoWorker;
  const uint64_t count = candidates_.size();
  const uint64_t first = rng_.Below(count);
  if (count == 1) return candidates_[first];
  // Another one than the first.
  const uint64_t second = (first + 1 + rng_.Below(count - 1)) % count;
  const WorkerIndex a = candidates_[first], b = candidates_[second];
  return room_[b].active < room_[a].active ? b : a;
}

}  // namespace bfio::core
