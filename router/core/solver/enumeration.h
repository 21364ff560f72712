// The exact solution of tiny instances, fast enough for every decision.
//
// Purpose: with few workers and items, local search can end in an obvious local optimum. When trying all
// plans is less than a fixed amount of work, all are tried. The best replaces the present plan if it admits
// more items (by class, the highest priority first) or has a smaller objective. Ownership: reused between
// decisions; allocates only to grow. Threads: one.
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

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_ENUMERATION_H_
