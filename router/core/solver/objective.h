// kSquare without a horizon and with equal workers, able to price an exchange in O(1).
//
// Purpose: the common case of a decision, kept lean (quadratic_pricing.h prices the general one):
//   Reset(instance, loads)  takes the workers' loads
//   Value()                 the objective of the loads
//   Single(g)               prices "worker g's load changes by d"
//   Pair(g, h)              prices "g's load changes by d, h's by e"
//   Apply(g, d)             makes the change
//   AdmitCost(item)         what admitting an item costs besides its load
// Loads are kept as doubles around a whole number: below 2^53 they are exact, so plans repeat bit for bit.
// Threads: one.
#ifndef BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
#define BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

// sum_g (L_g - target)^2, less the worth of what is admitted. One term per worker: no worker's price depends
// on another's load.
class SquareObjective {
 public:
  void Reset(const Instance& instance, absl::Span<const int64_t> loads) {
    x_.clear();
    for (int64_t load : loads) x_.push_back(static_cast<double>(load) - instance.target_load);
  }

  double Value() const {
    double squares = 0;
    for (double x : x_) squares += x * x;
    return squares;
  }

  struct SinglePrice {
    double twice_x;
    double operator()(double d) const { return d * (d + twice_x); }
  };
  SinglePrice Single(int32_t g) const { return {2 * x_[g]}; }

  struct PairPrice {
    SinglePrice g, h;
    double operator()(double d, double e) const { return g(d) + h(e); }
  };
  PairPrice Pair(int32_t g, int32_t h) const { return {Single(g), Single(h)}; }

  void Apply(int32_t g, double d) { x_[g] += d; }
  double AdmitCost(const SolverItem& item) const { return -item.worth; }

 private:
  // L_g - target.
  std::vector<double> x_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
