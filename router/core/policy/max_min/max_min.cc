#include "router/core/policy/max_min/max_min.h"

namespace bfio::core {

void MaxMinPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  room_.Reset(snapshot);
  by_size_.Place(snapshot, SizeOrder::kLargestFirst, room_, decision.assignments);
}

}  // namespace bfio::core
