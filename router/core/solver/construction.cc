#include "router/core/solver/construction.h"

#include <algorithm>
#include <functional>
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

// The workers that have a slot, least loaded first and then by index.
class Ranking {
 public:
  explicit Ranking(const Allocation& allocation) : allocation_(allocation) {
    for (int32_t g = 0; g < allocation.workers(); ++g) Enter(g);
  }
  // kUnassigned when the first has no free KV for the item, so that another may have to take it.
  int32_t First(int32_t item) const {
    return heap_.empty() || !allocation_.Fits(item, heap_.front().second) ? kUnassigned
                                                                          : heap_.front().second;
  }
  // The first has been given something.
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

// False, at the first item that fits nowhere.
bool PlaceAll(Allocation& allocation, const std::vector<int32_t>& order) {
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
  }
}

}  // namespace bfio::core
