// Places one request after the other on the worker with the least key, in O(log workers) each where KV memory
// suffices. Least-loaded placement of many requests in large groups. Ownership: borrows the capacity, in
// which it enters the placements. Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

template <class Key>
class LeastFirst {
 public:
  // REQUIRES: `key(view)` does not fall when a request is placed. Workers with `most_active` requests get no
  // more. Only this object may change `free`.
  LeastFirst(FreeCapacity& free, int64_t most_active, Key key)
      : free_(free), most_active_(most_active), key_(std::move(key)) {
    for (WorkerIndex g = 0; g < free.workers(); ++g) Add(g);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // Places the request on the worker with the least key that it fits (ties: lowest index). Returns that
  // worker, or kNoWorker.
  WorkerIndex Take(const WaitingView& request) {
    WorkerIndex taken = kNoWorker;
    size_t popped = 0;
    for (; taken == kNoWorker && popped < heap_.size(); ++popped) {
      const auto end = heap_.end() - static_cast<std::ptrdiff_t>(popped);
      std::pop_heap(heap_.begin(), end, std::greater<>());
      const WorkerIndex worker = (end - 1)->second;
      if (free_.Fits(request, worker)) taken = worker;
    }
    if (taken != kNoWorker) free_.Take(request, taken);
    looks_ += static_cast<int64_t>(popped);
    // The workers that were looked at return to the heap, the chosen one with its new key.
    looked_at_.assign(heap_.end() - static_cast<std::ptrdiff_t>(popped), heap_.end());
    heap_.resize(heap_.size() - popped);
    for (const Entry& entry : looked_at_) {
      if (Add(entry.second)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    return taken;
  }

  // Number of workers that Take has looked at, over all calls.
  int64_t looks() const { return looks_; }

 private:
  using Entry = std::pair<decltype(std::declval<Key>()(std::declval<const WorkerView&>())), WorkerIndex>;

  bool Add(WorkerIndex worker) {
    const WorkerView& view = free_[worker];
    if (view.free_slots <= 0 || view.active >= most_active_) return false;
    heap_.emplace_back(key_(view), worker);
    return true;
  }

  FreeCapacity& free_;
  const int64_t most_active_;
  const Key key_;
  int64_t looks_ = 0;
  // A heap, least first.
  std::vector<Entry> heap_;
  std::vector<Entry> looked_at_;
};

// The indices of the first `count` waiting requests, longest prompt first; equal ones in their order.
inline void OrderLongestFirst(const Snapshot& snapshot, size_t count, std::vector<int32_t>& order) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
}

// Places these waiting indices in order, each on the worker with the least step time that it fits. Completes
// a placement that a deadline has ended. Returns false, with `plan` and `free` incomplete, when a request
// fits nowhere, or when KV memory is so short that workers are looked at more than 2 * requests + workers
// times.
inline bool PlaceOnLeastLoaded(const Snapshot& snapshot, absl::Span<const int32_t> requests,
                               FreeCapacity& free, std::vector<Assignment>& plan) {
  LeastFirst least(free, std::numeric_limits<int64_t>::max(),
                   [](const WorkerView& worker) { return worker.Time(); });
  const int64_t most_looks = 2 * static_cast<int64_t>(requests.size()) + free.workers();
  for (const int32_t i : requests) {
    if (least.looks() > most_looks) return false;
    const WorkerIndex worker = least.Take(snapshot.waiting[static_cast<size_t>(i)]);
    if (worker == kNoWorker) return false;
    plan.push_back({i, worker});
  }
  return true;
}

}  // namespace bfio::core
