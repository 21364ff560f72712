#include "router/core/policy/baselines/baselines.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/place_in_order.h"

namespace bfio::core {
namespace {

// Offers the requests in pool order to `pick(free, request)`.
template <class Pick>
class InOrderPolicy final : public Policy {
 public:
  InOrderPolicy(absl::string_view name, Pick pick) : name_(name), pick_(std::move(pick)) {}
  absl::string_view name() const override { return name_; }

  void Decide(const Snapshot& snapshot, Decision& decision) override {
    free_.Reset(snapshot);
    PlaceInOrder(snapshot, free_, decision.assignments,
                 [&](const WaitingView& request) { return pick_(free_, request); });
  }

 private:
  absl::string_view name_;
  Pick pick_;
  FreeCapacity free_;
};

template <class Pick>
std::unique_ptr<Policy> InOrder(absl::string_view name, Pick pick) {
  return std::make_unique<InOrderPolicy<Pick>>(name, std::move(pick));
}

template <class Key>
std::unique_ptr<Policy> ByLeast(absl::string_view name, Key key) {
  return InOrder(name, [key](const FreeCapacity& free, const WaitingView& request) {
    return LeastKey(free, request, key);
  });
}

int64_t Load(const WorkerView& worker) {
  return worker.load_tokens;
}

// Of the workers that can take the request, the one with the least key; of equal ones, the first from `next`
// on. Sets `next` to the worker behind it.
template <class Key>
WorkerIndex LeastInTurn(const FreeCapacity& free, const WaitingView& request, WorkerIndex& next, Key key) {
  WorkerIndex best = kNoWorker;
  for (WorkerIndex turn = 0; turn < free.workers(); ++turn) {
    const WorkerIndex g = (next + turn) % free.workers();
    if ((best == kNoWorker || key(free[g]) < key(free[best])) && free.Fits(request, g)) best = g;
  }
  if (best != kNoWorker) next = (best + 1) % free.workers();
  return best;
}

class TwoRandomWorkers {
 public:
  explicit TwoRandomWorkers(uint64_t seed) : rng_(seed) {}

  WorkerIndex operator()(const FreeCapacity& free, const WaitingView& request) {
    candidates_.clear();
    for (WorkerIndex g = 0; g < free.workers(); ++g) {
      if (free.Fits(request, g)) candidates_.push_back(g);
    }
    if (candidates_.empty()) return kNoWorker;
    std::swap(candidates_[0], candidates_[rng_.Below(candidates_.size())]);
    if (candidates_.size() == 1) return candidates_[0];
    const WorkerIndex first = candidates_[0], second = candidates_[1 + rng_.Below(candidates_.size() - 1)];
    return free[second].active < free[first].active ? second : first;
  }

 private:
  Rng rng_;
  // Scratch: the workers that can take the request at hand.
  std::vector<WorkerIndex> candidates_;
};

class LptPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "lpt"; }

  void Decide(const Snapshot& snapshot, Decision& decision) override {
    free_.Reset(snapshot);
    if (PlaceLargestFirst(snapshot, decision.assignments)) return;
    decision.assignments.clear();
    free_.Reset(snapshot);
    PlaceInOrder(snapshot, free_, decision.assignments,
                 [&](const WaitingView& request) { return LeastKey(free_, request, Load); });
  }

 private:
  // Returns false when one of the oldest requests does not fit.
  bool PlaceLargestFirst(const Snapshot& snapshot, std::vector<Assignment>& plan) {
    order_.resize(std::min<size_t>(snapshot.waiting.size(), free_.free_slots()));
    std::iota(order_.begin(), order_.end(), 0);
    // All of them get a slot, so any order of equal requests is correct; the order changes a run's imbalance
    // by 2 %.
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      const int64_t s_a = snapshot.waiting[a].prefill_tokens, s_b = snapshot.waiting[b].prefill_tokens;
      return s_a != s_b ? s_a > s_b : a > b;
    });
    for (int32_t i : order_) {
      const WorkerIndex worker = LeastKey(free_, snapshot.waiting[i], Load);
      if (worker == kNoWorker) return false;
      free_.Take(snapshot.waiting[i], worker);
      plan.push_back({i, worker});
    }
    return true;
  }

  FreeCapacity free_;
  std::vector<int32_t> order_;
};

}  // namespace

std::unique_ptr<Policy> Fcfs() {
  return ByLeast("fcfs", [](const WorkerView& worker) { return -worker.free_slots; });
}

std::unique_ptr<Policy> LeastTokens() {
  return ByLeast("least_tokens", Load);
}

std::unique_ptr<Policy> LeastRequests() {
  return InOrder("least_requests", [next = WorkerIndex{0}](const FreeCapacity& free,
                                                           const WaitingView& request) mutable {
    return LeastInTurn(free, request, next, [](const WorkerView& worker) { return worker.active; });
  });
}

std::unique_ptr<Policy> RoundRobin() {
  return InOrder("round_robin",
                 [next = WorkerIndex{0}](const FreeCapacity& free, const WaitingView& request) mutable {
                   return LeastInTurn(free, request, next, [](const WorkerView&) { return 0; });
                 });
}

std::unique_ptr<Policy> PowerOfTwo(uint64_t seed) {
  return InOrder("power_of_two", TwoRandomWorkers(seed));
}

std::unique_ptr<Policy> Jffc() {
  return ByLeast("jffc", [](const WorkerView& worker) { return worker.service_time; });
}

std::unique_ptr<Policy> Lpt() {
  return std::make_unique<LptPolicy>();
}

}  // namespace bfio::core
