// The exact answer for tiny instances, fast enough to belong to a decision.
//
// Purpose: with few workers and items local search can end in an obvious local optimum. When all
// choices together are less than a fixed amount of work they are tried, and the best replaces the plan at
// hand if it admits more (by class, the most urgent first) or has a smaller objective.
// Ownership: reused between decisions; allocates only to grow. Threads: one.
#ifndef BFIO_ROUTER_CORE_SOLVER_ENUMERATION_H_
#define BFIO_ROUTER_CORE_SOLVER_ENUMERATION_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/run.h"
#include "router/core/solver/settings.h"
#include "router/core/solver/solution.h"

namespace bfio::core {

class Enumeration {
 public:
  // Whether trying everything is little enough work.
  static bool Affordable(const Instance& instance, const Run& run);

  // Makes `solution` optimal. REQUIRES: Affordable; `solution` is feasible, and what `pricing` was reset to.
  template <class Pricing>
  void Improve(const Instance& instance, Pricing& pricing, Run& run, Solution& solution);

 private:
  template <class Pricing>
  void Visit(int32_t item, Pricing& pricing);
  template <class Pricing>
  void Judge(Pricing& pricing);
  // By class, the most urgent first: how many items wait on.
  void CountWaiting(const std::vector<int32_t>& worker_of, std::vector<int32_t>& counts) const;

  Allocation allocation_;
  std::vector<int32_t> worker_of_;
  std::vector<int32_t> open_;
  // By item: its class, 0 the most urgent.
  std::vector<int32_t> class_of_;
  // By class: items passed over so far, and in the best choice.
  std::vector<int32_t> waiting_, best_waiting_;
  std::vector<int32_t> best_;
  double weight_ = 0;
  double best_value_ = 0;
  bool found_ = false;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_ENUMERATION_H_
