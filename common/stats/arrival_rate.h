// An online estimate of an arrival rate that changes. An exponentially weighted count: an event of age x has
// the weight exp(-x / tau) / tau, divided by 1 - exp(-T / tau) where T is the time since the start. The
// relative error is about 1 / sqrt(2 rate tau). Times ascend, in any unit; rates are per that unit. Threads:
// one.
#pragma once

#include <cmath>

namespace bfio {

class ArrivalRate {
 public:
  // `time_constant`: tau. REQUIRES: above 0.
  explicit ArrivalRate(double time_constant) : tau_(time_constant) {}

  void OnArrival(double now) {
    weight_ = weight_ * std::exp((last_ - now) / tau_) + 1 / tau_;
    last_ = now;
  }

  // The rate at `now` remains the same, and follows arrivals with the new time constant from then on.
  // REQUIRES: above 0.
  void SetTimeConstant(double time_constant, double now) {
    const double rate = Rate(now);
    tau_ = time_constant;
    weight_ = rate * -std::expm1(-now / tau_);
    last_ = now;
  }

  double Rate(double now) const {
    const double seen = -std::expm1(-now / tau_);
    return seen <= 0 ? 0 : weight_ * std::exp((last_ - now) / tau_) / seen;
  }

  // The rate plus `errors` standard errors.
  double Bound(double now, double errors) const {
    const double rate = Rate(now);
    return rate + errors * std::sqrt(rate / (2 * tau_));
  }

  // Whether `solved`, the rate plus two standard errors at an earlier time, is out of date: the rate plus one
  // standard error exceeds it, or the rate plus two is below 0.8 of it.
  bool HasLeft(double solved, double now) const {
    return Bound(now, kErrors / 2) > solved || Bound(now, kErrors) < kBelow * solved;
  }
  // The rate for which to solve.
  double Solve(double now) const { return Bound(now, kErrors); }

 private:
  static constexpr double kErrors = 2, kBelow = 0.8;

  double tau_;
  // Sum of the weights at time `last_`.
  double weight_ = 0, last_ = 0;
};

}  // namespace bfio
