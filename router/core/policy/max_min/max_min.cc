#include "router/core/policy/max_min/max_min.h"

namespace bfio::core {

void MaxMinPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  by_size_.Place(snapshot, SizeOrder::kLargestFirst, free_, decision.assignments);
}

}  // namespace bfio::core
