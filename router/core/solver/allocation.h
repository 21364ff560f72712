// A feasible plan under construction: the worker of each item, and the remaining capacity.
//
// Purpose: couples items to the account of free capacity, so that construction and improvement cannot exceed
// a capacity. Ownership: borrows the instance between Reset and the last call. Reused between decisions;
// allocates only to grow. Threads: one.
#ifndef BFIO_ROUTER_CORE_SOLVER_ALLOCATION_H_
#define BFIO_ROUTER_CORE_SOLVER_ALLOCATION_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/solution.h"

namespace bfio::core {

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
    const WorkerView& before = instance_->workers[worker];
    return before.TimeAt(static_cast<double>(load(worker))) +
           before.prefill_weight * static_cast<double>(load(worker) - before.load_tokens);
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

#endif  // BFIO_ROUTER_CORE_SOLVER_ALLOCATION_H_
