// Prices of exchanges under the squared deviations from a target (instance.h, kSquare). One of the two
// pricings of the search (search.h defines a pricing). A worker costs sum_h d_h y(h)^2 with y its time less
// the target, so no worker's price depends on another's. An item of load s adds r (s p(h) + q(h)) to y(h),
// with r the worker's time_per_token. So the price of giving a slot to an item is a
// parabola in s for a given curve: its coefficients cost O(H) once per slot and curve, and every further item
// O(1). Lowest() is its minimum. Ownership: borrows instance and terms from Reset on. Threads: one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "router/core/solver/instance.h"
#include "router/core/solver/terms.h"

namespace bfio::core {

class SquarePricing {
 public:
  // Takes the workers' times with the items that `allocation` has placed.
  void Reset(const Instance& instance, const Terms& terms, const Allocation& allocation);
  // The objective without the weights.
  double Value() const;

  // Opens a slot: worker g without item `out` (kUnassigned: unchanged). Lowest and Gain refer to the open
  // slot.
  void Open(int32_t g, int32_t out);
  // For items of that curve: the load at which Gain is minimal, and its value there.
  SlotPrice Lowest(int32_t curve);
  // Change of the objective when an item of this load and of the curve of the last Lowest takes the slot.
  double Gain(double load, int32_t) const { return constant_ + load * (slope_ + load * bend_); }
  double GainOf(int32_t item) const { return Gain(LoadOn(item, slot_worker_), CurveOf(item)); }
  // The cost of admitting an item apart from its load.
  double AdmitCost(const SolverItem& item) const { return -item.weight; }
  bool HasAdmitCosts() const { return true; }

  // Change of the objective when two items on different workers change places, or one moves to worker `to`.
  double Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker) const;
  double Move(int32_t item, int32_t from, int32_t to) const;
  bool MayTrade(int32_t) const { return true; }

  const Terms& terms() const { return *terms_; }

  // Adds (+1) the item to the worker or removes it (-1). Call Settle after a set of these.
  void Put(int32_t item, int32_t g, int32_t sign);
  void Settle() {}
  int64_t epoch(int32_t) const { return 0; }

 private:
  // The cost of one worker.
  double CostOf(int32_t g) const;
  double* Row(int32_t g) { return y_.data() + static_cast<size_t>(g) * steps_; }
  const double* Row(int32_t g) const { return y_.data() + static_cast<size_t>(g) * steps_; }
  double LoadOn(int32_t item, int32_t g) const {
    return static_cast<double>(instance_->items[item].LoadOn(g));
  }
  int32_t CurveOf(int32_t item) const { return instance_->CurveOf(instance_->items[item]); }
  TimeAdded Added(int32_t item, int32_t g) const { return terms_->Added(*instance_, item, g); }

  const Instance* instance_ = nullptr;
  const Terms* terms_ = nullptr;
  int32_t steps_ = 1;
  std::vector<double> targets_;
  // [g * steps + h]: the worker's time less the target.
  std::vector<double> y_;
  // The open slot: its worker, y without the item that leaves, and the worker's present cost.
  int32_t slot_worker_ = 0;
  std::vector<double> slot_y_;
  double slot_cost_ = 0;
  // The parabola of the last Lowest.
  double constant_ = 0, slope_ = 0, bend_ = 0;
};

}  // namespace bfio::core
