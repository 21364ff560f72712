#include "router/core/policy/pool_scale.h"

#include <cmath>

namespace bfio::core {

PoolScale MeasurePool(absl::Span<const WaitingView> waiting) {
  PoolScale scale;
  const double count = static_cast<double>(waiting.size());
  for (const WaitingView& request : waiting) {
    scale.mean += static_cast<double>(request.prefill_tokens) / count;
  }
  for (const WaitingView& request : waiting) {
    scale.deviation += std::abs(static_cast<double>(request.prefill_tokens) - scale.mean) / count;
  }
  return scale;
}

}  // namespace bfio::core
