// Prices of exchanges under the objectives that are sums of squares: kSquare and kRefill (settings.h).
//
// Purpose: one of the two pricings the search is written for (search.h says what a pricing is). A worker
// costs sum_h w(h) y(h)^2, y being its time less the target; no worker's price depends on another's.
//   square  w(h) = d_h;                           an item of load s adds rate (s p(h) + q(h)) to y(h)
//   refill  w(h) = d_h quiet_g(h) prod_i p_i(h);  it adds rate (s + h) to y(h), and multiplies w(h) by p(h)
// Either way the price of giving a seat to an item is a parabola in s for a given curve: its coefficients
// cost O(H) once for a seat and curve, and every item after that O(1). Ideal() is its minimum.
//
// Ownership: borrows instance and terms from Reset on. Threads: one at a time.
#ifndef BFIO_ROUTER_CORE_SOLVER_QUADRATIC_PRICING_H_
#define BFIO_ROUTER_CORE_SOLVER_QUADRATIC_PRICING_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/settings.h"
#include "router/core/solver/terms.h"

namespace bfio::core {

class QuadraticPricing {
 public:
  explicit QuadraticPricing(ObjectiveKind kind) : refill_(kind == ObjectiveKind::kRefill), kind_(kind) {}

  // Takes the workers with what `allocation` has given them.
  void Reset(const Instance& instance, const Terms& terms, const Allocation& allocation);
  // Without the worths.
  double Value() const;

  // Opens a seat: worker g without item `out` (kUnassigned: as it is). Ideal and Gain are about it.
  void Open(int32_t g, int32_t out) { Open(g, out, seat_); }
  // The load of that curve at which Gain is least.
  double Ideal(int32_t curve) { return seat_.Parabola(*this, curve).Lowest(); }
  // Change of the objective when an item of this load and curve takes the seat. REQUIRES: Ideal(curve) was
  // asked since Open.
  double Gain(double load, int32_t curve) const { return seat_.parabolas[curve](load); }
  double GainOf(int32_t item) { return GainAt(seat_, item); }
  // What admitting an item costs besides its load.
  double AdmitCost(const SolverItem& item) const { return -item.worth; }
  bool HasAdmitCosts() const { return true; }

  // Change of the objective when two items on different workers change places, or one moves to worker `to`.
  double Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker);
  double Move(int32_t item, int32_t from, int32_t to);
  bool MayTrade(int32_t) const { return true; }

  // The item joins (+1) or leaves (-1) the worker. Call Settle after a set of these.
  void Put(int32_t item, int32_t g, int32_t sign);
  void Settle() {}
  int64_t epoch() const { return 0; }

 private:
  struct Parabola {
    double constant = 0, slope = 0, bend = 0;
    bool known = false;
    double operator()(double load) const { return constant + load * (slope + load * bend); }
    double Lowest() const { return bend > 0 ? -slope / (2 * bend) : 0; }
  };
  struct Seat {
    int32_t worker = 0;
    double rate = 1;
    // What the worker costs now; an item's price is the cost with it less this.
    double now = 0;
    // [h]: y and w without the item that left.
    std::vector<double> y, w;
    // By curve, computed when first asked for.
    std::vector<struct Parabola> parabolas;

    const struct Parabola& Parabola(const QuadraticPricing& pricing, int32_t curve) {
      if (!parabolas[curve].known) parabolas[curve] = pricing.Fit(*this, curve);
      return parabolas[curve];
    }
  };
  void Open(int32_t g, int32_t out, Seat& seat) const;
  Parabola Fit(const Seat& seat, int32_t curve) const;
  double GainAt(Seat& seat, int32_t item) const {
    return seat.Parabola(*this, CurveOf(item))(LoadOn(item, seat.worker));
  }
  // Cost of the seat's worker when nobody takes the seat, less what it costs now.
  double GainOfNobody(const Seat& seat) const;

  double* Row(int32_t g) { return y_.data() + static_cast<size_t>(g) * steps_; }
  const double* Row(int32_t g) const { return y_.data() + static_cast<size_t>(g) * steps_; }
  double LoadOn(int32_t item, int32_t g) const {
    return static_cast<double>(instance_->items[item].LoadOn(g));
  }
  int32_t CurveOf(int32_t item) const { return instance_->CurveOf(instance_->items[item]); }
  double Added(int32_t item, int32_t g, int32_t h) const;
  double Weight(int32_t g, int32_t h, int32_t without) const;

  bool refill_;
  ObjectiveKind kind_;
  const Instance* instance_ = nullptr;
  const Terms* terms_ = nullptr;
  int32_t steps_ = 1;
  std::vector<double> targets_;
  // [g * steps + h]: the worker's time less the target.
  std::vector<double> y_;
  // What each worker has been given.
  std::vector<std::vector<int32_t>> given_;
  // For the seat that is open, and for the two of an exchange.
  Seat seat_, a_seat_, b_seat_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_QUADRATIC_PRICING_H_
