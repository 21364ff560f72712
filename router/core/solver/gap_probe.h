// How far plans may be from the best ones, proven at one solve in so many.
//
// Purpose: a live figure for the solver's quality. A bound costs about what a round of the search does, so
// most solves go without one; a solve with a bound gives the same answer. Threads: one, the solver's.
#ifndef BFIO_ROUTER_CORE_SOLVER_GAP_PROBE_H_
#define BFIO_ROUTER_CORE_SOLVER_GAP_PROBE_H_

#include <cstdint>
#include <optional>

#include "router/core/solver/solver.h"

namespace bfio::core {

class GapProbe {
 public:
  // Proves every `every`th solve, or the next one after it whose bound is cheap; 0: none.
  explicit GapProbe(int32_t every) : every_(every) {}

  // solver.Solve(instance, stop), with a proven gap for every n-th call.
  const Solution& Solve(Solver& solver, const Instance& instance, const StopSignal& stop);

  // Of the last Solve, where it was proven: no choice that admits as many items is better by more than this
  // share of the largest time among the workers, per worker and step looked ahead: in the mean for the
  // paper's J, in the root mean square for the other objectives, weights counted as the squares they are
  // weighed against.
  std::optional<double> gap() const { return gap_; }

 private:
  const int32_t every_;
  int32_t since_ = 0;
  std::optional<double> gap_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_GAP_PROBE_H_
