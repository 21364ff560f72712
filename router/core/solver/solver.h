// Solves one decision: construction, local search, fill.
//
// Purpose: the entry point of this module. Owns the scratch memory of a decision, so that a steady stream of
// decisions does not allocate. Threads: one at a time. Deterministic for (instance, settings), unless a
// deadline ends the search.
#ifndef BFIO_ROUTER_CORE_SOLVER_SOLVER_H_
#define BFIO_ROUTER_CORE_SOLVER_SOLVER_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/enumeration.h"
#include "router/core/solver/evaluate.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/pool_index.h"
#include "router/core/solver/run.h"
#include "router/core/solver/search.h"
#include "router/core/solver/settings.h"
#include "router/core/solver/solution.h"
#include "router/core/solver/square_pricing.h"
#include "router/core/solver/statistics.h"
#include "router/core/solver/terms.h"

namespace bfio::core {

class Solver {
 public:
  explicit Solver(const SolverSettings& settings) : settings_(settings) {}

  // Returns a feasible plan that leaves no item waiting that a worker could still take. Calls `stop` from
  // time to time, at every stage. When `stop` returns true, the present plan is returned, which may leave
  // such items. REQUIRES: at least one worker; items in pool order; no negative load, weight, offset or
  // discount; every time_per_token above 0. The reference is valid until the next call.
  const Solution& Solve(const Instance& instance, const StopSignal& stop = {});

  // Sets SolverSettings::bound from the next Solve on.
  void set_bound(bool bound) { settings_.bound = bound; }
  const SolverSettings& settings() const { return settings_; }

  // Statistics of the last Solve.
  const SolverStatistics& statistics() const { return statistics_; }

 private:
  template <class Pricing>
  void SolveWith(Pricing& pricing, Search<Pricing>& search, Run& run);

  SolverSettings settings_;
  Terms terms_;
  PoolIndex index_;
  PaperPricing paper_;
  SquarePricing square_;
  Search<PaperPricing> search_paper_;
  Search<SquarePricing> search_square_;
  Enumeration enumeration_;
  Allocation allocation_;
  Solution solution_;
  SolverStatistics statistics_;
  std::vector<int32_t> order_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SOLVER_H_
