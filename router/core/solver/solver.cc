#include "router/core/solver/solver.h"

#include <algorithm>
#include <cmath>
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

// Limit of the number of plans times the work to evaluate one: 0.3 ms at most. Covers G <= 3, |items| <= 6, H
// <= 20.
constexpr double kMostWork = 300'000;

double Work(const Instance& instance) {
  const auto open = std::count_if(instance.workers.begin(), instance.workers.end(),
                                  [](const WorkerView& worker) { return worker.free_slots > 0; });
  return std::pow(static_cast<double>(open + 1), static_cast<double>(instance.items.size())) *
         static_cast<double>(instance.workers.size()) * instance.steps();
}

}  // namespace

const Solution& Solver::Solve(const Instance& instance, const StopSignal& stop) {
  statistics_ = {};
  Run run(settings_.max_evaluations, stop, statistics_);
  allocation_.Reset(instance, solution_.worker_of);
  if (settings_.objective == ObjectiveKind::kPaper) {
    SolveWith(paper_, search_paper_, run);
  } else {
    SolveWith(square_, search_square_, run);
  }
  return solution_;
}

template <class Pricing>
void Solver::SolveWith(Pricing& pricing, Search<Pricing>& search, Run& run) {
  const Instance& instance = allocation_.instance();
  const auto reset = [&] {
    terms_.Reset(instance);
    pricing.Reset(instance, terms_, allocation_);
    index_.Reset(instance, allocation_);
  };
  if (instance.Target() == 0) {
    statistics_.converged = true;
    return;
  }
  Construct(allocation_, order_, run);
  if (run.Stopped()) return;
  reset();
  statistics_.converged = search.Descend(pricing, allocation_, index_, run);
  search.Escape(settings_.kicks);
  // Swaps may have freed KV on a worker.
  FillInOrder(allocation_, run);
  if (!Enumeration::Affordable(instance, run)) return;
  reset();
  statistics_.exact = enumeration_.Improve(instance, pricing, run, solution_);
}

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

void Enumeration::CountWaiting(const std::vector<int32_t>& worker_of, std::vector<int32_t>& counts) const {
  counts.assign(class_of_.empty() ? 0 : class_of_.back() + 1, 0);
  for (size_t i = 0; i < worker_of.size(); ++i) {
    if (worker_of[i] == kUnassigned) ++counts[class_of_[i]];
  }
}

bool Enumeration::Affordable(const Instance& instance, const Run& run) {
  const double work = Work(instance);
  return work <= kMostWork && work <= static_cast<double>(run.budget());
}

template <class Pricing>
bool Enumeration::Improve(const Instance& instance, Pricing& pricing, Run& run, Solution& solution) {
  if (!run.Spend(static_cast<int64_t>(Work(instance)))) return false;
  open_.clear();
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    if (instance.workers[g].free_slots > 0) open_.push_back(static_cast<int32_t>(g));
  }
  class_of_.clear();
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const bool next = i > 0 && instance.items[i].priority != instance.items[i - 1].priority;
    class_of_.push_back(i == 0 ? 0 : class_of_.back() + (next ? 1 : 0));
  }
  best_ = solution.worker_of;
  CountWaiting(best_, best_waiting_);
  waiting_.assign(best_waiting_.size(), 0);
  best_value_ = pricing.Value();
  for (size_t i = 0; i < best_.size(); ++i) {
    if (best_[i] == kUnassigned) continue;
    best_value_ += pricing.AdmitCost(instance.items[i]);
    pricing.Put(static_cast<int32_t>(i), best_[i], -1);
  }
  weight_ = 0;
  found_ = false;
  allocation_.Reset(instance, worker_of_);
  Visit(0, pricing, run);
  if (found_) solution.worker_of = best_;
  return !run.Stopped();
}

template <class Pricing>
void Enumeration::Visit(int32_t item, Pricing& pricing, Run& run) {
  const Instance& instance = allocation_.instance();
  if (!run.GoOn(static_cast<int64_t>(instance.workers.size()) * instance.steps())) return;
  // More items of one class wait than in the best plan, and no fewer of any higher class.
  if (waiting_ > best_waiting_) return;
  if (item == allocation_.items()) return Judge(pricing);
  for (int32_t g : open_) {
    if (!allocation_.Fits(item, g)) continue;
    allocation_.Place(item, g);
    pricing.Put(item, g, +1);
    weight_ += pricing.AdmitCost(allocation_.item(item));
    Visit(item + 1, pricing, run);
    weight_ -= pricing.AdmitCost(allocation_.item(item));
    pricing.Put(item, g, -1);
    allocation_.Remove(item);
  }
  ++waiting_[class_of_[item]];
  Visit(item + 1, pricing, run);
  --waiting_[class_of_[item]];
}

template <class Pricing>
void Enumeration::Judge(Pricing& pricing) {
  pricing.Settle();
  const double value = pricing.Value() + weight_;
  if (waiting_ == best_waiting_ && value >= best_value_ - kLeastGain) return;
  best_waiting_ = waiting_;
  best_value_ = value;
  best_ = worker_of_;
  found_ = true;
}

template bool Enumeration::Improve(const Instance&, PaperPricing&, Run&, Solution&);
template bool Enumeration::Improve(const Instance&, SquarePricing&, Run&, Solution&);

}  // namespace bfio::core
