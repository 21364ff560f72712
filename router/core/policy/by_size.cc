#include "router/core/policy/by_size.h"

#include <algorithm>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

void BySize::Place(const Snapshot& snapshot, SizeOrder order, FreeCapacity& free,
                   std::vector<Assignment>& plan) {
  const auto& waiting = snapshot.waiting;
  const auto later = [&](int32_t a, int32_t b) {
    const int64_t size_a = waiting[a].prefill_tokens, size_b = waiting[b].prefill_tokens;
    if (size_a == size_b) return a > b;
    return order == SizeOrder::kSmallestFirst ? size_a > size_b : size_a < size_b;
  };
  const int32_t count = static_cast<int32_t>(waiting.size());
  for (int32_t next = 0; next < count && free.free_slots() > 0;) {
    heap_.clear();
    const int32_t priority = waiting[next].priority;
    for (; next < count && waiting[next].priority == priority; ++next) heap_.push_back(next);
    std::make_heap(heap_.begin(), heap_.end(), later);
    while (!heap_.empty() && free.free_slots() > 0) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const int32_t i = heap_.back();
      heap_.pop_back();
      const int64_t size = waiting[i].prefill_tokens;
      const WorkerIndex worker =
          LeastKey(free, waiting[i], [&](const WorkerView& view) { return view.Time(size); });
      if (worker == kNoWorker) continue;
      free.Take(waiting[i], worker);
      plan.push_back({i, worker});
    }
  }
}

}  // namespace bfio::core
