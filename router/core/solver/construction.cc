#include "router/core/solver/construction.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace bfio::core {
namespace {

// The least loaded worker that can take the item, or kUnassigned.
int32_t LeastLoaded(const Allocation& allocation, int32_t item) {
  int32_t best = kUnassigned;
  for (int32_t g = 0; g < allocation.workers(); ++g) {
    if ((best == kUnassigned || allocation.time(g) < allocation.time(best)) && allocation.Fits(item, g))
      best = g;
  }
  return best;
}

// Work of one search by LeastLoaded, for Run.
int64_t WorkOfSearch(const Allocation& allocation) {
  const KvOutlook& kv = allocation.instance().kv;
  return allocation.workers() * (1 + static_cast<int64_t>(kv.row()));
}

// The workers that have a slot, least loaded first and then by index.
class Ranking {
 public:
  explicit Ranking(const Allocation& allocation) : allocation_(allocation) {
    for (int32_t g = 0; g < allocation.workers(); ++g) Enter(g);
  }
  // kUnassigned when the first worker lacks the KV memory for the item, so that another one may have to take
  // it.
  int32_t First(int32_t item) const {
    return heap_.empty() || !allocation_.Fits(item, heap_.front().second) ? kUnassigned
                                                                          : heap_.front().second;
  }
  // Updates the first worker's position after a placement on it.
  void Renew() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const int32_t g = heap_.back().second;
    heap_.pop_back();
    Enter(g);
  }

 private:
  void Enter(int32_t g) {
    if (allocation_.slots(g) == 0) return;
    heap_.emplace_back(allocation_.time(g), g);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  const Allocation& allocation_;
  std::vector<std::pair<double, int32_t>> heap_;
};

// Stops and returns false at the first item that fits nowhere, or at the deadline.
bool PlaceAll(Allocation& allocation, const std::vector<int32_t>& order, Run& run) {
  Ranking ranking(allocation);
  size_t next = 0;
  for (; next < order.size(); ++next) {
    const int32_t worker = ranking.First(order[next]);
    if (worker == kUnassigned) break;
    allocation.Place(order[next], worker);
    ranking.Renew();
  }
  for (; next < order.size(); ++next) {
    const int32_t worker = LeastLoaded(allocation, order[next]);
    if (worker == kUnassigned) return false;
    allocation.Place(order[next], worker);
    if (!run.GoOn(WorkOfSearch(allocation))) return next + 1 == order.size();
  }
  return true;
}

// Removes placed items in `order` while an item of a higher class is not placed.
void KeepClassesStrict(Allocation& allocation, const std::vector<int32_t>& order) {
  int32_t highest = std::numeric_limits<int32_t>::min();
  for (const int32_t item : order) {
    if (allocation.WorkerOf(item) == kUnassigned) highest = std::max(highest, allocation.item(item).priority);
  }
  for (const int32_t item : order) {
    if (allocation.WorkerOf(item) != kUnassigned && allocation.item(item).priority < highest)
      allocation.Remove(item);
  }
}

}  // namespace

void Construct(Allocation& allocation, std::vector<int32_t>& scratch, Run& run) {
  const Instance& instance = allocation.instance();
  scratch.resize(instance.Target());
  std::iota(scratch.begin(), scratch.end(), 0);
  std::stable_sort(scratch.begin(), scratch.end(),
                   [&](int32_t a, int32_t b) { return instance.items[a].load > instance.items[b].load; });
  if (PlaceAll(allocation, scratch, run)) return;
  if (run.Stopped()) {
    KeepClassesStrict(allocation, scratch);
  } else {
    for (int32_t item : scratch) {
      if (allocation.WorkerOf(item) != kUnassigned) allocation.Remove(item);
    }
  }
  FillInOrder(allocation, run);
}

void FillInOrder(Allocation& allocation, Run& run) {
  KvRefusals refusals;
  refusals.Reset(allocation.instance().kv);
  for (int32_t item = 0; item < allocation.items() && allocation.slots_left() > 0; ++item) {
    if (allocation.WorkerOf(item) != kUnassigned) continue;
    const SolverItem& of = allocation.item(item);
    if (refusals.Refused(of.kv_need, of.kv_reserve)) continue;
    const int32_t worker = LeastLoaded(allocation, item);
    if (worker != kUnassigned) {
      allocation.Place(item, worker);
    } else {
      refusals.Note(of.kv_need, of.kv_reserve);
    }
    if (!run.GoOn(WorkOfSearch(allocation))) return;
  }
}

}  // namespace bfio::core
