// What the square objective needs to know besides loads: how much load to admit, whose turn it is, and which
// workers prepare for a request too large for any gap.
//
// Purpose: fills target_load, worth, home and credit of an Instance (router/core/solver/instance.h). Threads:
// one (scratch memory). Deterministic.
//
// All three come from two scales of the pool, so that nothing has to be tuned to a workload's lengths or
// rates: S, the mean deviation of prompt lengths from their mean (tokens, by what one adds to the mean
// worker), and A, a typical age (steps).
//
// Target. The level that admitting U average requests would give to the workers that count (level_workers.h),
// less kStockTilt * S for each of the U. Aiming a little low leaves the larger half of the pool as stock;
// without it the search spends every mid-sized request at once, and the pool decays to common sizes that fit
// no gap.
//
// Worth. S^2 (kAgeWorth r + kAgeSquaredWorth r^2) with r = age / A, and a little for every step. What passing
// a request over can gain is bounded, its worth is not: nobody starves.
//
// Preparing. A request more than kOverdueAges * A old, and more than kGiant times what a slot usually holds,
// cannot enter without a worker far above the rest, and every token of that costs G until the worker has
// drained. A worker below the rest costs one. So the least loaded worker expects it: it is credited with the
// excess now, is given small requests until it has sunk by as much, and then the giant closes an ordinary
// gap.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_VALUATION_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_VALUATION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "router/core/model/snapshot.h"
#include "router/core/policy/level_workers.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

class Valuation {
 public:
  // `instance` has workers and items of the snapshot, in its order. REQUIRES: neither is empty.
  void Apply(const Snapshot& snapshot, Instance& instance);

 private:
  // A, at least 1.
  double TypicalAge(const Snapshot& snapshot);

  void Prepare(const Snapshot& snapshot, double typical_age, Instance& instance);
  int64_t Age(const WaitingView& request) const {
    return std::max<int64_t>(0, youngest_ - request.senior_step());
  }

  // Step of the last arrival: ages count from it, so that a backlog that makes everybody wait
  // alike does not make everybody overdue.
  int64_t youngest_ = 0;
  LevelWorkers level_workers_;
  // The level workers of this decision, least loaded first.
  std::vector<WorkerIndex> level_;
  // Scratch.
  std::vector<int64_t> ages_;
  std::vector<int32_t> giants_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_VALUATION_H_
