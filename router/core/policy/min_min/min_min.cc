#include "router/core/policy/min_min/min_min.h"

namespace bfio::core {

void MinMinPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  by_size_.Place(snapshot, SizeOrder::kSmallestFirst, free_, decision.assignments);
}

}  // namespace bfio::core
