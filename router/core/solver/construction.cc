#include "router/core/solver/construction.h"

#include <algorithm>
#include <numeric>

namespace bfio::core {
namespace {

// The least loaded worker that can take the item, or kUnassigned.
int32_t LeastLoaded(const Allocation& allocation, int32_t item) {
  int32_t best = kUnassigned;
  for (int32_t g = 0; g < allocation.workers(); ++g) {
    if (allocation.Fits(item, g) && (best == kUnassigned || allocation.load(g) < allocation.load(best)))
      best = g;
  }
  return best;
}

// False, at the first item that fits nowhere.
bool PlaceAll(Allocation& allocation, const std::vector<int32_t>& order) {
  for (int32_t item : order) {
    const int32_t worker = LeastLoaded(allocation, item);
    if (worker == kUnassigned) return false;
    allocation.Place(item, worker);
  }
  return true;
}

}  // namespace

void Construct(Allocation& allocation, std::vector<int32_t>& scratch) {
  const Instance& instance = allocation.instance();
  scratch.resize(instance.Target());
  std::iota(scratch.begin(), scratch.end(), 0);
  std::stable_sort(scratch.begin(), scratch.end(),
                   [&](int32_t a, int32_t b) { return instance.items[a].load > instance.items[b].load; });
  if (PlaceAll(allocation, scratch)) return;
  for (int32_t item : scratch) {
    if (allocation.WorkerOf(item) != kUnassigned) allocation.Remove(item);
  }
  FillInOrder(allocation);
}

void FillInOrder(Allocation& allocation) {
  for (int32_t item = 0; item < allocation.items() && allocation.slots_left() > 0; ++item) {
    if (allocation.WorkerOf(item) != kUnassigned) continue;
    const int32_t worker = LeastLoaded(allocation, item);
    if (worker != kUnassigned) allocation.Place(item, worker);
  }
}

}  // namespace bfio::core
