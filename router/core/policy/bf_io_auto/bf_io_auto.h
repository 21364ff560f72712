// The default policy: BF-IO that sets its own weights.
//
// Purpose: which requests enter and where, without parameters to tune. Two regimes, distinguished at every
// decision:
//   slots for all   all requests enter; a few workers are kept low for the next large request (headroom.h).
//   fewer slots     the program of bf_io (squared deviations from a common level, less weights) over all that
//                   wait. The weight of waiting follows from the waits under a first-come rule (urgency.h),
//                   and workers are reserved for requests that fit no gap (oversized_requests.h).
// docs/decision.md describes the alternatives. Classes of priority are strict.
//
// Threads: as Policy. Deterministic.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_BF_IO_AUTO_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_BF_IO_AUTO_H_

#include <utility>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/bf_io_auto/headroom.h"
#include "router/core/policy/bf_io_auto/oversized_requests.h"
#include "router/core/policy/bf_io_auto/urgency.h"
#include "router/core/policy/level_workers.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/gap_probe.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

class BfIoAutoPolicy final : public Policy {
 public:
  explicit BfIoAutoPolicy(StopSignal stop = {}, int32_t gap_every = 0)
      : stop_(std::move(stop)), solver_(SolverSettings{}), probe_(gap_every) {}

  absl::string_view name() const override { return "bf_io_auto"; }
  bool uses_first_come_waits() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // By the program.
  void Solve(const Snapshot& snapshot, const PoolScale& scale, Decision& decision);

  StopSignal stop_;
  FreeCapacity free_;
  UrgencyTracker urgency_;
  OversizedRequests oversized_;
  Headroom headroom_;
  Instance instance_;
  Solver solver_;
  GapProbe probe_;
  LevelWorkers level_workers_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_BF_IO_AUTO_H_
