// The objective kSquare without a horizon, where an item adds the same time to all workers: exchanges are
// priced in O(1).
//
// Purpose: the common case of a decision, kept fast (quadratic_pricing.h covers the general one):
//   Reset(allocation)       takes the workers' times
//   Value()                 the objective, in units of the squared time of a token
//   Single(g)               the price of "worker g's load changes by d"
//   Pair(g, h)              the price of "g's load changes by d, h's by e"
//   Apply(g, d)             makes the change
//   AdmitCost(item)         the cost of admitting an item apart from its load
// Where a token adds 1 and offsets are integers, all times are integers, and exact as doubles below 2^53.
// Threads: one.
#ifndef BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
#define BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

// sum_g (T_g - target)^2 less the weights of admitted items, with times in units of the time of a token: in
// these units an item adds its load. One term per worker, so no worker's price depends on another's load.
class SquareObjective {
 public:
  // REQUIRES: EqualRates, and at least one worker.
  void Reset(const Allocation& allocation) {
    const Instance& instance = allocation.instance();
    rate_ = instance.workers[0].load_rate();
    x_.clear();
    for (int32_t g = 0; g < allocation.workers(); ++g) {
      x_.push_back((allocation.time(g) - instance.target_load) / rate_);
    }
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
  double AdmitCost(const SolverItem& item) const { return -item.weight / (rate_ * rate_); }

 private:
  double rate_ = 1;
  // (T_g - target) / rate_.
  std::vector<double> x_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
