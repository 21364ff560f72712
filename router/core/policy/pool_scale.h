// The scale of the waiting requests' sizes. The unit in which bf_io and bf_io_auto measure prompt lengths, so
// that nothing has to be tuned to a workload. Threads: any, no state. Cost: O(waiting).
#pragma once

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Weight of a waiting request's age, per step, in tokens^2 times the squared time that a token adds to the
// mean worker. Decides between requests where all have one size, so that the deviation is 0.
inline constexpr double kLeastAgeWeight = 200;

// Mean prompt length of the pool and mean distance from it, tokens.
struct PoolScale {
  double mean = 0;
  double deviation = 0;
};

// Both 0 when no request waits.
PoolScale MeasurePool(absl::Span<const WaitingView> waiting);

}  // namespace bfio::core
