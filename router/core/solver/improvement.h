// Local search without a horizon: exchanges until none improves or the run is over.
//
// Purpose: three neighbourhoods, each kept feasible by Allocation:
//   swap      an admitted item with a waiting one of the same priority
//   exchange  two admitted items on different workers
//   move      an admitted item to a free slot of another worker
// For every admitted item the best partner is taken if it improves. The number of admitted items never
// changes. Cost: one round is U * (|waiting| + U + G) evaluations. Threads: one.
#ifndef BFIO_ROUTER_CORE_SOLVER_IMPROVEMENT_H_
#define BFIO_ROUTER_CORE_SOLVER_IMPROVEMENT_H_

#include <cstdint>
#include <vector>

#include "router/core/solver/allocation.h"
#include "router/core/solver/objective.h"
#include "router/core/solver/run.h"

namespace bfio::core {

class Improvement {
 public:
  // Improves `allocation` in place. Borrows all three for the call. True at a local optimum, false when the
  // run was over before.
  bool Descend(SquareObjective& objective, Allocation& allocation, Run& run);

 private:
  // An item's data in the layout of the inner loops.
  struct Entry {
    double load;
    double cost;
    int32_t priority;
    int32_t item;
    int32_t reserved_worker;
    double precounted_tokens;

    double LoadOn(int32_t g) const { return g == reserved_worker ? load - precounted_tokens : load; }
  };

  void Load(const SquareObjective& objective, const Allocation& allocation);
  bool Round();
  bool Swap(Entry& admitted);
  bool Exchange(Entry& admitted);
  bool Move(Entry& admitted);

  SquareObjective* objective_ = nullptr;
  Allocation* allocation_ = nullptr;
  Run* run_ = nullptr;
  std::vector<Entry> admitted_;
  std::vector<Entry> waiting_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_IMPROVEMENT_H_
