// A feasible choice in the making: who is where, and what room is left.
//
// Purpose: the one place that keeps slots and KV, so that construction and improvement cannot break a cap.
// Ownership: borrows the instance between Reset and the last call. Reused between decisions; allocates only
// to grow. Threads: one.
#ifndef BFIO_ROUTER_CORE_SOLVER_ALLOCATION_H_
#define BFIO_ROUTER_CORE_SOLVER_ALLOCATION_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/instance.h"
#include "router/core/solver/solution.h"

namespace bfio::core {

class Allocation {
 public:
  // Everything waits. `worker_of` is where the choice is written.
  void Reset(const Instance& instance, std::vector<int32_t>& worker_of) {
    instance_ = &instance;
    worker_of_ = &worker_of;
    worker_of.assign(instance.items.size(), kUnassigned);
    room_.assign(instance.workers.begin(), instance.workers.end());
    kv_.Reset(instance.kv);
    slots_left_ = instance.TotalSlots();
  }

  const Instance& instance() const { return *instance_; }
  int32_t workers() const { return static_cast<int32_t>(room_.size()); }
  int32_t items() const { return static_cast<int32_t>(worker_of_->size()); }
  int32_t WorkerOf(int32_t item) const { return (*worker_of_)[item]; }
  const SolverItem& item(int32_t item) const { return instance_->items[item]; }

  // L_g with the items given to it.
  int64_t load(int32_t worker) const { return room_[worker].load; }
  // The same as time.
  double time(int32_t worker) const {
    const int64_t given = room_[worker].load - instance_->workers[worker].load;
    return room_[worker].Time(static_cast<double>(room_[worker].load)) +
           room_[worker].prefill_weight * static_cast<double>(given);
  }
  int32_t slots(int32_t worker) const { return room_[worker].slots; }
  int64_t kv(int32_t worker) const { return room_[worker].kv_tokens; }
  int64_t slots_left() const { return slots_left_; }

  bool Fits(int32_t item, int32_t worker) const {
    return slots(worker) > 0 && (this->item(item).kv_reserve <= kv(worker) ||
                                 (!kv_.empty() && kv_.Fits(this->item(item).kv_need, worker)));
  }

  // Whether `worker` could have `coming` for its `leaving`, as far as KV goes.
  bool KvFitsInstead(int32_t coming, int32_t leaving, int32_t worker) const {
    return item(coming).kv_reserve <= kv(worker) + item(leaving).kv_reserve ||
           (!kv_.empty() && kv_.FitsInstead(item(coming).kv_need, item(leaving).kv_need, worker));
  }

  // REQUIRES: Fits(item, worker), and the item waits.
  void Place(int32_t item, int32_t worker) { Put(item, worker, +1); }

  // REQUIRES: the item is placed.
  void Remove(int32_t item) { Put(item, WorkerOf(item), -1); }

 private:
  void Put(int32_t item, int32_t worker, int32_t sign) {
    room_[worker].load += sign * this->item(item).LoadOn(worker);
    room_[worker].kv_tokens -= sign * this->item(item).kv_reserve;
    if (!kv_.empty()) kv_.Put(this->item(item).kv_need, worker, sign);
    room_[worker].slots -= sign;
    slots_left_ -= sign;
    (*worker_of_)[item] = sign > 0 ? worker : kUnassigned;
  }

  const Instance* instance_ = nullptr;
  std::vector<int32_t>* worker_of_ = nullptr;
  // Load so far, slots and KV left.
  std::vector<SolverWorker> room_;
  KvRoom kv_;
  int64_t slots_left_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_ALLOCATION_H_
