// BF-IO: an integer program over the whole pool chooses which waiting requests to admit, and on which
// workers.
//
// Source: BF-IO paper, section 3 (IO); the program itself is router/core/solver. With a lookahead, H steps
// ahead count, each with `discount` times the weight of the one before it. Objectives:
//   square  (default) squared deviations of the loads from a common level, less weights for waiting
//           (Valuation): balances better and does not starve any request.
//   paper   J = sum over h of G max L - sum L. Its term - sum L rewards large requests, so small ones may
//           wait long.
// Classes of priority are strict: a request is never passed over for a lower class while KV admits it.
//
// Purpose: the program with the user's settings; bf_io_auto derives its settings itself. Threads: as Policy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/level_workers.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

// Parameters of the square objective: how much load to admit, the weight of each request, and the workers
// reserved for oversized requests. Sets target_load, weight, reserved_worker and precounted_tokens of an
// Instance (router/core/solver/instance.h). Threads: one (scratch memory). Deterministic.
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

// Largest horizon that bf_io accepts.
inline constexpr int32_t kMaxHorizon = 500;

// INVALID_ARGUMENT, with the setting and its permitted values in the message.
absl::StatusOr<SolverSettings> BfIoSettings(const PolicyOptions& options);

class BfIoPolicy final : public Policy {
 public:
  BfIoPolicy(const SolverSettings& settings, int32_t horizon, double discount, StopSignal stop = {})
      : settings_(settings),
        horizon_(horizon),
        discount_(discount),
        stop_(std::move(stop)),
        solver_(settings) {}

  absl::string_view name() const override { return "bf_io"; }
  int32_t horizon() const override { return horizon_; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  void SetDiscounts();
  void ScaleWeights();

  SolverSettings settings_;
  int32_t horizon_;
  double discount_;
  StopSignal stop_;
  FreeCapacity free_;
  Valuation valuation_;
  Instance instance_;
  Solver solver_;
};

}  // namespace bfio::core
