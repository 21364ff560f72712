#include "router/core/policy/throttled/throttled.h"

#include <cstdint>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {
namespace {

// Number of every four slots that are filled without considering the loads.
constexpr int32_t kThresholdQuarters = 3;

// Loads are at least 0: any worker below its threshold comes before all others, and they tie.
int64_t Key(const WorkerView& worker) {
  const int32_t slots = worker.active + worker.free_slots;
  return 4 * worker.active < kThresholdQuarters * slots ? -1 : worker.load_tokens;
}

}  // namespace

void ThrottledPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  PlaceInOrder(snapshot, free_, decision.assignments,
               [&](const WaitingView& request) { return LeastKey(free_, request, Key); });
}

}  // namespace bfio::core
