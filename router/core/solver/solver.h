// Solves one decision: construction, local search, fill.
//
// Purpose: the entrance of this room. Owns the scratch memory of a decision, so that a steady stream of
// decisions does not allocate. Threads: one at a time. Deterministic for (instance, settings).
#ifndef BFIO_ROUTER_CORE_SOLVER_SOLVER_H_
#define BFIO_ROUTER_CORE_SOLVER_SOLVER_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/improvement.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/objective.h"
#include "router/core/solver/settings.h"
#include "router/core/solver/solution.h"

namespace bfio::core {

class Solver {
 public:
  explicit Solver(const SolverSettings& settings) : settings_(settings) {}

  // A feasible choice that leaves no item waiting that some worker could still take. REQUIRES: at least one
  // worker. The reference is valid until the next call.
  const Solution& Solve(const Instance& instance);

  // Of the last Solve.
  const SolverStatistics& statistics() const { return statistics_; }

 private:
  template <class Objective>
  void Search(Objective& objective, Improvement<Objective>& improvement);

  SolverSettings settings_;
  SquareObjective square_;
  PaperObjective paper_;
  Improvement<SquareObjective> improve_square_;
  Improvement<PaperObjective> improve_paper_;
  Allocation allocation_;
  Solution solution_;
  SolverStatistics statistics_;
  std::vector<int32_t> order_;
  std::vector<int64_t> loads_;
};

// The objective's value for a choice; what Solve minimises. REQUIRES: at least one worker.
double Evaluate(const Instance& instance, const SolverSettings& settings, const Solution& solution);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SOLVER_H_
