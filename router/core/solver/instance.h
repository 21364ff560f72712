// One decision of the BF-IO integer program (BF-IO paper, section 3, equations IO). The solver's input. Given
// workers with loads and free capacity, and a pool of items, choose which items go to which worker, so that
// an objective of the resulting loads is minimal. Exactly U = min(|items|, sum of slots) items are chosen
// when KV allows it. Plain data, filled by the caller and reused between decisions. Loads and KV are in
// tokens. Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// T_g(h) is worker g's time h steps ahead with the items placed on it, d_h the discount (instance.h).
enum class ObjectiveKind {
  // J = sum_h d_h (G max_g T_g(h) - sum_g T_g(h)): the paper's imbalance, tokens.
  kPaper,
  // sum_h d_h sum_g (T_g(h) - target(h))^2 - sum of the admitted weights, tokens^2. For given items this is
  // the squared deviation from the mean. The target determines how much load is admitted, the weights which
  // requests are urgent.
  kSquare,
};

struct SolverSettings {
  ObjectiveKind objective = ObjectiveKind::kSquare;
  // Work budget, in evaluated exchanges (a few nanoseconds each; an exchange over a horizon counts as
  // several). Counted, not timed, so the same instance gives the same plan on a slower machine.
  int64_t max_evaluations = 400'000;
  // Number of attempts to leave a local optimum, within the budget; matters with few free slots and the
  // paper's J.
  int32_t kicks = 2;
};

// The item stays waiting.
inline constexpr int32_t kUnassigned = -1;

struct Solution {
  // The worker of each item, or kUnassigned.
  std::vector<int32_t> worker_of;
};

// SolverItem::reserved_worker of an item without one.
inline constexpr int32_t kNoReservedWorker = -1;

struct SolverItem {
  // w_i(0) = s_i: the load that the item adds to its worker.
  int64_t load = 0;
  int64_t kv_reserve = 0;
  // An item is never passed over for one of a lower class while KV admits it.
  int32_t priority = 0;
  // Square: the gain of admitting the item, without its effect on balance, in the objective's unit, time^2.
  double weight = 0;
  // The worker reserved for the item: `precounted_tokens` of the item's load are already counted there
  // (WorkerView::load_tokens, and in its row of `ahead`).
  int32_t reserved_worker = kNoReservedWorker;
  int64_t precounted_tokens = 0;
  // Row of Instance::curves; row of Instance::kv.need.
  int32_t curve = 0;
  int32_t kv_need = 0;
  // Tried for every slot, wherever it is in the pool.
  bool sought = false;

  KvDemand kv() const { return {kv_reserve, kv_need}; }
  // The load that the item adds to worker g.
  int64_t LoadOn(int32_t g) const { return g == reserved_worker ? load - precounted_tokens : load; }
};

struct Instance {
  // L_g, cap[g] and KV before the decision (model/snapshot.h).
  std::vector<WorkerView> workers;
  // The pool: higher priority first, then oldest first.
  std::vector<SolverItem> items;
  // Square: the time that every worker should have after the decision, in tokens.
  double target_load = 0;
  // H; the vectors below are empty when it is 0. Rows have H + 1 entries (model/snapshot.h, Outlook).
  int32_t horizon = 0;
  // [h]: target_load h steps ahead; empty: derived from target_load (FindTargets in evaluate.h).
  std::vector<double> target_ahead;
  // [g * (H + 1) + h]: load of worker g's present requests h steps ahead, in tokens; at h = 0,
  // WorkerView::load_tokens is used instead.
  std::vector<double> ahead;
  // [c * (H + 1) + h]: survival probability. Item i adds (load_i + h) * curves[curve_i][h] tokens to its
  // worker h steps ahead.
  std::vector<double> curves;
  // [h]: weight of the step h ahead; all 1 in the paper's J, and when empty.
  std::vector<double> discount;
  // KV needs at future times, where admission is not by reservation; borrowed.
  KvOutlook kv;

  int32_t steps() const { return horizon + 1; }
  double LoadAhead(size_t g, int32_t h) const {
    return h == 0 ? static_cast<double>(workers[g].load_tokens) : ahead[g * static_cast<size_t>(steps()) + h];
  }
  double Survival(int32_t curve, int32_t h) const {
    return curves.empty() ? 1 : curves[static_cast<size_t>(curve) * static_cast<size_t>(steps()) + h];
  }
  double Discount(int32_t h) const { return discount.empty() ? 1 : discount[h]; }
  // Number of curves.
  int32_t NumCurves() const {
    return curves.empty() ? 1 : static_cast<int32_t>(curves.size() / static_cast<size_t>(steps()));
  }
  // The item's row of `curves`.
  int32_t CurveOf(const SolverItem& item) const { return curves.empty() ? 0 : item.curve; }
  // Mean over the workers of the time that a token of an item adds. REQUIRES: at least one worker.
  double MeanRate() const {
    double rates = 0;
    for (const WorkerView& worker : workers) rates += worker.time_per_token;
    return rates / static_cast<double>(workers.size());
  }

  int64_t TotalSlots() const {
    int64_t slots = 0;
    for (const WorkerView& worker : workers) slots += worker.free_slots;
    return slots;
  }
  // U of the paper.
  int64_t Target() const { return std::min<int64_t>(TotalSlots(), static_cast<int64_t>(items.size())); }
};

// A feasible plan under construction: the worker of each item, and the remaining capacity. Couples items to
// the account of free capacity, so that construction and improvement cannot exceed a capacity. Ownership:
// borrows the instance between Reset and the last call. Reused between decisions; allocates only to grow.
// Threads: one.
class Allocation {
 public:
  // Starts with every item waiting. The plan is written to `worker_of`.
  void Reset(const Instance& instance, std::vector<int32_t>& worker_of) {
    instance_ = &instance;
    worker_of_ = &worker_of;
    worker_of.assign(instance.items.size(), kUnassigned);
    free_.Reset(instance.workers, instance.kv);
  }

  const Instance& instance() const { return *instance_; }
  int32_t workers() const { return free_.workers(); }
  int32_t items() const { return static_cast<int32_t>(worker_of_->size()); }
  int32_t WorkerOf(int32_t item) const { return (*worker_of_)[item]; }
  const SolverItem& item(int32_t item) const { return instance_->items[item]; }

  // L_g with the items placed on it.
  int64_t load(int32_t worker) const { return free_[worker].load_tokens; }
  // The worker's step time at load(). Computed from loads, because sums and differences of times are not
  // exact.
  double time(int32_t worker) const {
    return instance_->workers[worker].TimeAt(static_cast<double>(load(worker)));
  }
  int32_t slots(int32_t worker) const { return free_[worker].free_slots; }
  int64_t kv(int32_t worker) const { return free_[worker].free_kv_tokens; }
  int64_t slots_left() const { return free_.free_slots(); }

  bool Fits(int32_t item, int32_t worker) const { return free_.Fits(this->item(item).kv(), worker); }

  // Whether KV memory permits `worker` to exchange its item `leaving` for `coming`.
  bool KvFitsInstead(int32_t coming, int32_t leaving, int32_t worker) const {
    return free_.KvHoldsInstead(item(coming).kv(), item(leaving).kv(), worker);
  }

  // REQUIRES: Fits(item, worker), and the item waits.
  void Place(int32_t item, int32_t worker) {
    free_.Take(this->item(item).kv(), this->item(item).LoadOn(worker), worker);
    (*worker_of_)[item] = worker;
  }

  // REQUIRES: the item is placed.
  void Remove(int32_t item) {
    const int32_t worker = WorkerOf(item);
    free_.Return(this->item(item).kv(), this->item(item).LoadOn(worker), worker);
    (*worker_of_)[item] = kUnassigned;
  }

 private:
  const Instance* instance_ = nullptr;
  std::vector<int32_t>* worker_of_ = nullptr;
  FreeCapacity free_;
};

}  // namespace bfio::core
