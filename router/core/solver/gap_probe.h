// A proven bound of the plans' distance from the optimum, for one of every n solves.
//
// Purpose: a live measure of the solver's quality. A bound costs about as much as a round of the search, so
// most solves do without; a solve with a bound gives the same plan. Threads: one, the solver's.
#ifndef BFIO_ROUTER_CORE_SOLVER_GAP_PROBE_H_
#define BFIO_ROUTER_CORE_SOLVER_GAP_PROBE_H_

#include <cstdint>
#include <optional>

#include "router/core/solver/solver.h"

namespace bfio::core {

class GapProbe {
 public:
  // Computes a bound for every `every`th solve, or for the next one after it whose bound is cheap; 0: never.
  explicit GapProbe(int32_t every) : every_(every) {}

  // solver.Solve(instance, stop), with a proven gap for every n-th call.
  const Solution& Solve(Solver& solver, const Instance& instance, const StopSignal& stop);

  // Set where the last Solve computed a bound: upper bound of the plan's excess over the optimum among plans
  // that admit as many items, as a share of the largest time among the workers, per worker and step of the
  // horizon. It is a mean for the paper's J, and a root mean square for the other objectives, whose weights
  // count as squares.
  std::optional<double> gap() const { return gap_; }

 private:
  const int32_t every_;
  int32_t since_ = 0;
  std::optional<double> gap_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_GAP_PROBE_H_
