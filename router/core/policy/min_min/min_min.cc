#include "router/core/policy/min_min/min_min.h"

namespace bfio::core {

void MinMinPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  by_size_.Place(snapshot, SizeOrder::kSmallestFirst, room_, decision.assignments);
}

}  // namespace bfio::core
