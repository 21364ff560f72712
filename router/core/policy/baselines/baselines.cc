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

// Out of every four slots, the number that are filled without considering the loads.
constexpr int32_t kThresholdQuarters = 3;

// Loads are at least 0, so workers below the threshold tie and come before all others.
int64_t ThrottledKey(const WorkerView& worker) {
  const int32_t slots = worker.active + worker.free_slots;
  return 4 * worker.active < kThresholdQuarters * slots ? -1 : worker.load_tokens;
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

class RandomChoices {
 public:
  RandomChoices(int32_t choices, uint64_t seed) : choices_(choices), rng_(seed) {}

  WorkerIndex operator()(const FreeCapacity& free, const WaitingView& request) {
    candidates_.clear();
    for (WorkerIndex g = 0; g < free.workers(); ++g) {
      if (free.Fits(request, g)) candidates_.push_back(g);
    }
    const size_t draws = std::min(candidates_.size(), static_cast<size_t>(choices_));
    WorkerIndex best = kNoWorker;
    for (size_t drawn = 0; drawn < draws; ++drawn) {
      // Drawn workers move to the front, so that none is drawn twice.
      std::swap(candidates_[drawn], candidates_[drawn + rng_.Below(candidates_.size() - drawn)]);
      const WorkerIndex g = candidates_[drawn];
      if (best == kNoWorker || free[g].active < free[best].active) best = g;
    }
    return best;
  }

 private:
  int32_t choices_;
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

// All requests of the highest priority by size (ties: older first), then those of the next, until no slot is
// left. Cost: linear in the pool, plus log pool + G for each request offered.
class BySizePolicy final : public Policy {
 public:
  BySizePolicy(absl::string_view name, bool largest_first) : name_(name), largest_first_(largest_first) {}
  absl::string_view name() const override { return name_; }

  void Decide(const Snapshot& snapshot, Decision& decision) override {
    free_.Reset(snapshot);
    const auto& waiting = snapshot.waiting;
    const auto later = [&](int32_t a, int32_t b) {
      const int64_t size_a = waiting[a].prefill_tokens, size_b = waiting[b].prefill_tokens;
      if (size_a == size_b) return a > b;
      return largest_first_ ? size_a < size_b : size_a > size_b;
    };
    const int32_t count = static_cast<int32_t>(waiting.size());
    for (int32_t next = 0; next < count && free_.free_slots() > 0;) {
      heap_.clear();
      const int32_t priority = waiting[next].priority;
      for (; next < count && waiting[next].priority == priority; ++next) heap_.push_back(next);
      std::make_heap(heap_.begin(), heap_.end(), later);
      while (!heap_.empty() && free_.free_slots() > 0) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const int32_t i = heap_.back();
        heap_.pop_back();
        const int64_t size = waiting[i].prefill_tokens;
        const WorkerIndex worker =
            LeastKey(free_, waiting[i], [&](const WorkerView& view) { return view.Time(size); });
        if (worker == kNoWorker) continue;
        free_.Take(waiting[i], worker);
        decision.assignments.push_back({i, worker});
      }
    }
  }

 private:
  absl::string_view name_;
  bool largest_first_;
  FreeCapacity free_;
  // Waiting indices of one class.
  std::vector<int32_t> heap_;
};

}  // namespace

std::unique_ptr<Policy> Fcfs() {
  return ByLeast("fcfs", [](const WorkerView& worker) { return -worker.free_slots; });
}

std::unique_ptr<Policy> FcfsFill() {
  return ByLeast("fcfs_fill", [](const WorkerView&) { return 0; });
}

std::unique_ptr<Policy> LeastTokens() {
  return ByLeast("least_tokens", Load);
}

std::unique_ptr<Policy> Throttled() {
  return ByLeast("throttled", ThrottledKey);
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

std::unique_ptr<Policy> PowerOfD(absl::string_view name, int32_t choices, uint64_t seed) {
  return InOrder(name, RandomChoices(choices, seed));
}

std::unique_ptr<Policy> Lpt() {
  return std::make_unique<LptPolicy>();
}

std::unique_ptr<Policy> MinMin() {
  return std::make_unique<BySizePolicy>("min_min", /*largest_first=*/false);
}

std::unique_ptr<Policy> MaxMin() {
  return std::make_unique<BySizePolicy>("max_min", /*largest_first=*/true);
}

}  // namespace bfio::core
