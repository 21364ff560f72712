// Solves one decision: construction, local search, fill. The entry point of this module. Owns the scratch
// memory of a decision, so that a steady stream of decisions does not allocate. Threads: one at a time.
// Deterministic for (instance, settings), unless a deadline ends the search.
#pragma once

#include <cstdint>
#include <vector>

#include "router/core/solver/evaluate.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/pool_index.h"
#include "router/core/solver/run.h"
#include "router/core/solver/search.h"
#include "router/core/solver/square_pricing.h"
#include "router/core/solver/terms.h"

namespace bfio::core {

// The exact solution of tiny instances, fast enough for every decision. With few workers and items, local
// search can end in an obvious local optimum. When trying all plans is less than a fixed amount of work, all
// are tried. The best replaces the present plan if it admits more items (by class, the highest priority
// first) or has a smaller objective. Ownership: reused between decisions; allocates only to grow. Threads:
// one.
class Enumeration {
 public:
  // Whether trying all plans is within the limit of work.
  static bool Affordable(const Instance& instance, const Run& run);

  // Makes `solution` optimal; false: it is the best plan found by the deadline. REQUIRES: Affordable;
  // `solution` is feasible and `pricing` agrees with it.
  template <class Pricing>
  bool Improve(const Instance& instance, Pricing& pricing, Run& run, Solution& solution);

 private:
  // Does nothing after the deadline.
  template <class Pricing>
  void Visit(int32_t item, Pricing& pricing, Run& run);
  template <class Pricing>
  void Judge(Pricing& pricing);
  // Number of waiting items by class, the highest priority first.
  void CountWaiting(const std::vector<int32_t>& worker_of, std::vector<int32_t>& counts) const;

  Allocation allocation_;
  std::vector<int32_t> worker_of_;
  std::vector<int32_t> open_;
  // Class by item; 0 has the highest priority.
  std::vector<int32_t> class_of_;
  // Number of items left waiting, by class: in the present plan, and in the best one.
  std::vector<int32_t> waiting_, best_waiting_;
  std::vector<int32_t> best_;
  double weight_ = 0;
  double best_value_ = 0;
  bool found_ = false;
};

// The initial feasible plan: the oldest U items, largest first, each to the least loaded worker with free
// capacity (LPT; Graham, 1969). When KV memory does not suffice for all of these, the items enter in pool
// order instead. Cost: O(U log U + U G), and O(|items|) more when KV binds.

// REQUIRES: nothing is placed yet. `scratch` is overwritten.
void Construct(Allocation& allocation, std::vector<int32_t>& scratch, Run& run);

// Places waiting items in pool order as long as one fits. Keeps work conservation after exchanges have freed
// KV.
void FillInOrder(Allocation& allocation, Run& run);

class Solver {
 public:
  explicit Solver(const SolverSettings& settings) : settings_(settings) {}

  // Returns a feasible plan that leaves no item waiting that a worker could still take. Calls `stop` from
  // time to time, at every stage. When `stop` returns true, the present plan is returned, which may leave
  // such items. REQUIRES: at least one worker; items in pool order; no negative load, weight, offset or
  // discount; every time_per_token above 0. The reference is valid until the next call.
  const Solution& Solve(const Instance& instance, const StopSignal& stop = {});

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
