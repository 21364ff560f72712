#include "router/core/policy/least_tokens/least_tokens.h"

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void LeastTokensPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    return LeastKey(free_, request, [](const WorkerView& worker) { return worker.load_tokens; });
  });
}

}  // namespace bfio::core
