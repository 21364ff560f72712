#include "tests/testing/solver_case.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "router/core/solver/evaluate.h"
#include "router/core/solver/instance.h"

namespace bfio::core {
namespace {

int64_t Below(Rng& rng, int64_t bound) {
  return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(bound)));
}

}  // namespace

void AddHorizon(Instance& instance, int32_t horizon, int32_t curves, bool steps, Rng& rng) {
  instance.horizon = horizon;
  if (horizon == 0) return;
  for (const WorkerView& worker : instance.workers) {
    double load = static_cast<double>(worker.load_tokens);
    for (int32_t h = 0; h <= horizon; ++h) {
      instance.ahead.push_back(load);
      load += 10;
      if (rng.Below(4) == 0) load *= 0.8;
      load = static_cast<double>(static_cast<int64_t>(load));
    }
  }
  for (int32_t c = 0; c < curves; ++c) {
    const auto end = static_cast<int32_t>(1 + rng.Below(static_cast<uint64_t>(horizon) + 1));
    double alive = 1;
    for (int32_t h = 0; h <= horizon; ++h) {
      instance.curves.push_back(steps ? (h < end ? 1 : 0) : alive);
      alive *= rng.Uniform();
    }
  }
  for (SolverItem& item : instance.items) item.curve = static_cast<int32_t>(Below(rng, curves));
}

Instance RandomInstance(const SolverCaseLimits& limits, Rng& rng) {
  Instance instance;
  const bool tight_kv = limits.tight_kv && rng.Below(2) == 0;
  const bool unequal = limits.unequal_workers && rng.Below(2) == 0;
  const bool priorities = limits.priorities && rng.Below(3) == 0;
  const bool item_weights = limits.weights && rng.Below(2) == 0;
  const int64_t workers = 1 + Below(rng, limits.max_workers), items = Below(rng, limits.max_items + 1);
  for (int64_t g = 0; g < workers; ++g) {
    WorkerView worker{Below(rng, 3 * limits.max_load), 0,
                      static_cast<int32_t>(Below(rng, limits.max_slots + 1)),
                      tight_kv ? Below(rng, 2 * limits.max_load) : kAmple};
    if (unequal) {
      worker.time_per_token = 0.5 + rng.Uniform();
      worker.time_offset = 100 * rng.Uniform();
    }
    worker.active = static_cast<int32_t>(Below(rng, 10));
    instance.workers.push_back(worker);
  }
  int32_t priority = 2;
  double total = 0, pool = 0, rate = 0;
  for (const WorkerView& worker : instance.workers) {
    total += worker.TimeAt(static_cast<double>(worker.load_tokens));
    rate += worker.time_per_token / static_cast<double>(workers);
  }
  for (int64_t i = 0; i < items; ++i) {
    if (priorities && priority > 0 && rng.Below(3) == 0) --priority;
    const int64_t load = 1 + Below(rng, limits.max_load);
    instance.items.push_back({load, load + Below(rng, limits.max_load), priorities ? priority : 0,
                              item_weights ? 1e4 * rng.Uniform() : 0});
    pool += static_cast<double>(load);
  }
  if (items > 0) total += rate * pool * static_cast<double>(instance.Target()) / static_cast<double>(items);
  instance.target_load = total / static_cast<double>(workers);
  const auto horizon = static_cast<int32_t>(Below(rng, limits.max_horizon + 1));
  AddHorizon(instance, horizon, static_cast<int32_t>(1 + Below(rng, horizon + 1)), rng.Below(2) == 0, rng);
  if (horizon > 0 && rng.Below(3) == 0) {
    for (int32_t h = 0; h <= horizon; ++h)
      instance.discount.push_back(h == 0 ? 1 : instance.discount.back() * 0.8);
  }
  return instance;
}

std::string Infeasibility(const Instance& instance, const Solution& solution) {
  if (solution.worker_of.size() != instance.items.size()) return "not one answer per item";
  std::vector<WorkerView> left = instance.workers;
  int64_t all_kv = 0, admitted = 0;
  int32_t lowest_in = 1 << 20, highest_out = -1;
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const int32_t g = solution.worker_of[i];
    const SolverItem& item = instance.items[i];
    all_kv += item.kv_reserve;
    if (g == kUnassigned) {
      highest_out = std::max(highest_out, item.priority);
      continue;
    }
    if (g < 0 || g >= static_cast<int32_t>(left.size())) return "no such worker";
    ++admitted;
    lowest_in = std::min(lowest_in, item.priority);
    if (--left[g].free_slots < 0) return "slots exceeded";
    left[g].free_kv_tokens -= item.kv_reserve;
    if (left[g].free_kv_tokens < 0) return "KV exceeded";
  }
  const bool ample = std::all_of(instance.workers.begin(), instance.workers.end(),
                                 [&](const WorkerView& worker) { return worker.free_kv_tokens >= all_kv; });
  if (ample && admitted != instance.Target()) return "not U admitted";
  if (ample && lowest_in < highest_out) return "a lower class went first";
  for (size_t i = 0; i < instance.items.size(); ++i) {
    if (solution.worker_of[i] != kUnassigned) continue;
    for (const WorkerView& worker : left) {
      if (worker.free_slots > 0 && worker.free_kv_tokens >= instance.items[i].kv_reserve)
        return "an item could still start";
    }
  }
  return "";
}

namespace {

class Trial {
 public:
  Trial(const Instance& instance, const SolverSettings& settings) : instance_(instance), settings_(settings) {
    allocation_.Reset(instance, current_.worker_of);
  }

  ExactAnswer Run() {
    for (size_t i = 0; i < instance_.items.size(); ++i) {
      const bool next = i == 0 || instance_.items[i].priority != instance_.items[i - 1].priority;
      if (next) admitted_.push_back(0);
      class_of_.push_back(admitted_.size() - 1);
    }
    Visit(0);
    return best_;
  }

 private:
  // Decides items `item`, item + 1, ...
  void Visit(int32_t item) {
    if (item == allocation_.items()) return Judge();
    Visit(item + 1);
    for (int32_t g = 0; g < allocation_.workers(); ++g) {
      if (!allocation_.Fits(item, g)) continue;
      allocation_.Place(item, g);
      ++admitted_[class_of_[item]];
      Visit(item + 1);
      --admitted_[class_of_[item]];
      allocation_.Remove(item);
    }
  }

  void Judge() {
    if (found_ && admitted_ < best_.admitted_by_class) return;
    const double objective = Evaluate(instance_, settings_, current_);
    if (found_ && admitted_ == best_.admitted_by_class && objective >= best_.objective) return;
    found_ = true;
    best_ = {current_, objective, std::accumulate(admitted_.begin(), admitted_.end(), int64_t{0}), admitted_};
  }

  const Instance& instance_;
  const SolverSettings& settings_;
  Solution current_;
  Allocation allocation_;
  // By item: its class. By class: number of items placed.
  std::vector<size_t> class_of_;
  std::vector<int64_t> admitted_;
  ExactAnswer best_;
  bool found_ = false;
};

}  // namespace

ExactAnswer SolveExhaustively(const Instance& instance, const SolverSettings& settings) {
  return Trial(instance, settings).Run();
}

}  // namespace bfio::core
