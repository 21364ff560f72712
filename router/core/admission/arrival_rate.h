// A rate of events that neither is known nor stays as it is.
//
// Purpose: an exponentially weighted count: an event x ago weighs exp(-x / tau) / tau, divided by 1 - exp(-T
// / tau) over the first T of all. Its relative error is about 1 / sqrt(2 rate tau). Times ascend, in any
// unit; rates are per such unit. Threads: one.
#ifndef BFIO_ROUTER_CORE_ADMISSION_ARRIVAL_RATE_H_
#define BFIO_ROUTER_CORE_ADMISSION_ARRIVAL_RATE_H_

#include <cmath>

namespace bfio::core {

class ArrivalRate {
 public:
  // tau. REQUIRES: above 0.
  explicit ArrivalRate(double time_constant) : tau_(time_constant) {}

  void OnArrival(double now) {
    weight_ = weight_ * std::exp((last_ - now) / tau_) + 1 / tau_;
    last_ = now;
  }

  double Rate(double now) const {
    const double seen = -std::expm1(-now / tau_);
    return seen <= 0 ? 0 : weight_ * std::exp((last_ - now) / tau_) / seen;
  }

  // The rate, and so many standard errors.
  double Bound(double now, double errors) const {
    const double rate = Rate(now);
    return rate + errors * std::sqrt(rate / (2 * tau_));
  }

  // Whether `solved` no longer serves as a bound two standard errors up: the estimate reaches it with one of
  // them, or is a fifth below it with two.
  bool HasLeft(double solved, double now) const {
    return Bound(now, kErrors / 2) > solved || Bound(now, kErrors) < kBelow * solved;
  }
  // What to solve for.
  double Solve(double now) const { return Bound(now, kErrors); }

 private:
  static constexpr double kErrors = 2, kBelow = 0.8;

  double tau_;
  // Sum of weights at `last_`.
  double weight_ = 0, last_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_ADMISSION_ARRIVAL_RATE_H_
