#include "router/core/policy/least_tokens/least_tokens.h"

namespace bfio::core {

void LeastTokensPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  PlaceInOrder(snapshot, room_, decision.assignments, [&](const WaitingView& request) {
    return LeastKey(room_, request, [](const WorkerView& worker) { return worker.load_tokens; });
  });
}

}  // namespace bfio::core
