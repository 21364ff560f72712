// Parameters of the square objective: how much load to admit, the weight of each request, and the workers
// reserved for oversized requests.
//
// Purpose: sets target_load, weight, reserved_worker and precounted_tokens of an Instance
// (router/core/solver/instance.h). Threads: one (scratch memory). Deterministic.
//
// All three come from two scales of the pool, so that nothing has to be tuned to a workload's lengths or
// rates: S, the mean deviation of prompt lengths from their mean (in tokens, times what a token adds to the
// mean worker), and A, a typical age (steps).
//
// Target. The level that admitting U average requests would give to the workers that count (level_workers.h),
// less kStockTilt * S for each of the U. A slightly low level keeps the larger half of the pool in reserve.
// Otherwise the search admits all mid-sized requests first, and the remaining common sizes fit no gap.
//
// Weight. S^2 (kAgeWeight r + kAgeSquaredWeight r^2) with r = age / A, and a small constant per step. The
// gain of passing over a request is bounded, its weight is not, so no request starves.
//
// Oversized requests. A request more than kOverdueAges * A old, and more than kOversized times the mean load
// of a slot, cannot enter without raising a worker far above the rest, and G workers wait for every token of
// the excess until the worker has drained. A worker below the rest delays no other. So the least loaded
// worker is reserved for it: the excess counts as its load in advance, so it gets small requests until its
// load has fallen by as much. Then the request fits an ordinary gap.
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
  // `instance` has the workers and items of the snapshot, in the snapshot's order. REQUIRES: neither is
  // empty.
  void Apply(const Snapshot& snapshot, Instance& instance);

 private:
  // A, at least 1.
  double TypicalAge(const Snapshot& snapshot);

  void Prepare(const Snapshot& snapshot, double typical_age, Instance& instance);
  int64_t Age(const WaitingView& request) const {
    return std::max<int64_t>(0, youngest_ - request.senior_step());
  }

  // Step of the last arrival: ages count from it, so that a backlog that delays all requests
  // alike does not make all of them overdue.
  int64_t youngest_ = 0;
  LevelWorkers level_workers_;
  // The level workers of this decision, least loaded first.
  std::vector<WorkerIndex> level_;
  // Scratch.
  std::vector<int64_t> ages_;
  std::vector<int32_t> oversized_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_VALUATION_H_
