// Prices of exchanges under the objectives that are sums of squares: kSquare and kRefill (settings.h).
//
// Purpose: one of the two pricings of the search (search.h defines a pricing). A worker costs sum_h w(h)
// y(h)^2 with y its time less the target, so no worker's price depends on another's.
//   square  w(h) = d_h;                           an item of load s adds R s p(h) + r q(h) to y(h)
//   refill  w(h) = d_h quiet_g(h) prod_i p_i(h);  it adds R s + r h to y(h), and multiplies w(h) by p(h)
// r is the worker's time_per_token and R its load_rate. In both cases the price of giving a slot to an item
// is a parabola in s for a given curve: its coefficients cost O(H) once per slot and curve, and every further
// item O(1). Lowest() is its minimum.
//
// Ownership: borrows instance and terms from Reset on. Threads: one at a time.
#ifndef BFIO_ROUTER_CORE_SOLVER_QUADRATIC_PRICING_H_
#define BFIO_ROUTER_CORE_SOLVER_QUADRATIC_PRICING_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/settings.h"
#include "router/core/solver/slot_price.h"
#include "router/core/solver/terms.h"

namespace bfio::core {

class QuadraticPricing {
 public:
  explicit QuadraticPricing(ObjectiveKind kind) : refill_(kind == ObjectiveKind::kRefill), kind_(kind) {}

  // Takes the workers' times with the items that `allocation` has placed.
  void Reset(const Instance& instance, const Terms& terms, const Allocation& allocation);
  // The objective without the weights.
  double Value() const;

  // The cost of one worker.
  double CostOf(int32_t g) const;

  // Opens a slot: worker g without item `out` (kUnassigned: unchanged). Lowest and Gain refer to the open
  // slot.
  void Open(int32_t g, int32_t out) { slot_ = &SlotOf(g, out); }
  // For items of that curve: the load at which Gain is minimal, and its value there.
  SlotPrice Lowest(int32_t curve) { return slot_->Price(*this, curve).Lowest(); }
  // Change of the objective when an item of this load and curve takes the slot. REQUIRES: Lowest(curve) was
  // called since Open.
  double Gain(double load, int32_t curve) const { return slot_->parabolas[curve](load); }
  double GainOf(int32_t item) { return GainAt(*slot_, item); }
  // The cost of admitting an item apart from its load.
  double AdmitCost(const SolverItem& item) const { return -item.weight; }
  bool HasAdmitCosts() const { return true; }

  // Change of the objective when two items on different workers change places, or one moves to worker `to`.
  double Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker);
  double Move(int32_t item, int32_t from, int32_t to);
  bool MayTrade(int32_t) const { return true; }

  // Work of one call of Pair, in evaluations.
  int64_t PairWork() const { return 2; }
  const Terms& terms() const { return *terms_; }

  // Adds (+1) the item to the worker or removes it (-1). Call Settle after a set of these.
  void Put(int32_t item, int32_t g, int32_t sign);
  void Settle() {}
  int64_t epoch(int32_t) const { return 0; }

 private:
  struct Parabola {
    double constant = 0, slope = 0, bend = 0;
    double operator()(double load) const { return constant + load * (slope + load * bend); }
    SlotPrice Lowest() const {
      const double load = bend > 0 ? -slope / (2 * bend) : 0;
      return {load, constant + load * slope / 2};
    }
  };
  // A worker without one of its items. Cached until the worker changes, because a round of trades needs it
  // repeatedly.
  struct Slot {
    int32_t worker = 0;
    int32_t out = kUnassigned;
    // Version of the worker for which it was computed.
    int64_t version = -1;
    double rate = 1, load_rate = 1;
    // The worker's present cost; an item's price is the cost with it less this.
    double now = 0;
    // The price when no item takes the slot.
    double empty = 0;
    // [h]: y and w without the item that left.
    std::vector<double> y, w;
    // By curve, computed on first use.
    std::vector<Parabola> parabolas;
    std::vector<char> known;

    const Parabola& Price(const QuadraticPricing& pricing, int32_t curve) {
      if (!known[curve]) {
        parabolas[curve] = pricing.Fit(*this, curve);
        known[curve] = 1;
      }
      return parabolas[curve];
    }
  };

  Slot& SlotOf(int32_t g, int32_t out);
  void Compute(int32_t g, int32_t out, Slot& slot) const;
  Parabola Fit(const Slot& slot, int32_t curve) const;
  double GainAt(Slot& slot, int32_t item) const {
    return slot.Price(*this, CurveOf(item))(LoadOn(item, slot.worker));
  }

  double* Row(int32_t g) { return y_.data() + static_cast<size_t>(g) * steps_; }
  const double* Row(int32_t g) const { return y_.data() + static_cast<size_t>(g) * steps_; }
  double LoadOn(int32_t item, int32_t g) const {
    return static_cast<double>(instance_->items[item].LoadOn(g));
  }
  int32_t CurveOf(int32_t item) const { return instance_->CurveOf(instance_->items[item]); }
  // The time that an item adds to a worker, by step.
  struct Addition {
    double time, rate;
    const double* p;
    const double* q;
    double operator[](int32_t h) const { return p == nullptr ? time + rate * h : time * p[h] + rate * q[h]; }
  };
  Addition AdditionOf(int32_t item, int32_t g) const;
  double Weight(int32_t g, int32_t h, int32_t without) const;

  bool refill_;
  ObjectiveKind kind_;
  const Instance* instance_ = nullptr;
  const Terms* terms_ = nullptr;
  int32_t steps_ = 1;
  std::vector<double> targets_;
  // [g * steps + h]: the worker's time less the target.
  std::vector<double> y_;
  // By worker: the items placed on it.
  std::vector<std::vector<int32_t>> given_;
  // [g]: counts the changes of the worker, never reset.
  std::vector<int64_t> version_;
  int64_t next_version_ = 0;
  // By item: the slot that it leaves; by worker: a free slot.
  std::vector<Slot> left_slots_, free_slots_;
  Slot* slot_ = nullptr;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_QUADRATIC_PRICING_H_
