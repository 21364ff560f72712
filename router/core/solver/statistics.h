// Statistics of one run of the solver.
//
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_SOLVER_STATISTICS_H_
#define BFIO_ROUTER_CORE_SOLVER_STATISTICS_H_

#include <cstdint>
#include <optional>

namespace bfio::core {

struct SolverStatistics {
  int64_t evaluations = 0;
  int64_t improvements = 0;
  // The search ended at a local optimum, not at the work budget or the deadline.
  bool converged = false;
  // The caller's deadline ended the search.
  bool deadline = false;
  // All plans were tried: the plan is optimal.
  bool exact = false;
  // Set only with SolverSettings::bound. No plan that admits as many items of every class has an objective
  // below lower_bound.
  std::optional<double> objective;
  std::optional<double> lower_bound;

  // True: more time might have given another plan.
  bool CutShort() const { return deadline && !exact; }
  // Proven distance from the optimum, in the objective's unit.
  std::optional<double> Gap() const {
    if (!objective || !lower_bound) return std::nullopt;
    return *objective - *lower_bound;
  }
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_STATISTICS_H_
