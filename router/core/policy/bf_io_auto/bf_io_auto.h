// The default policy: BF-IO with weights that are set automatically.
//
// Purpose: chooses the requests that enter and their workers, without parameters to tune. Two regimes,
// distinguished at every decision:
//   slots for all   all requests enter, by one of four rules: a few workers are kept low for the next large
//                   request (headroom.h); each request goes where future steps grow least (horizon.h), with
//                   or without what arrives later; or each goes to the least loaded worker, with even counts
//                   (policy/trtllm). The scheduler selects the rule with the shortest steps
//                   (router/core/choice).
//   fewer slots     the program of bf_io (squared deviations from a common level, less weights) over all that
//                   wait. The weight of waiting is derived from the waits under a first-come rule
//                   (urgency.h). Workers are reserved for requests that fit no gap (oversized_requests.h).
// docs/design/decision.md describes the alternatives. Classes of priority are strict.
//
// Threads: as Policy. Deterministic.
#pragma once

#include "router/core/model/free_capacity.h"
#include "router/core/policy/bf_io_auto/headroom.h"
#include "router/core/policy/bf_io_auto/horizon.h"
#include "router/core/policy/bf_io_auto/oversized_requests.h"
#include "router/core/policy/bf_io_auto/urgency.h"
#include "router/core/policy/level_workers.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/policy/trtllm/trtllm.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

class BfIoAutoPolicy final : public Policy {
 public:
  // It reads the options wait_ratio and stop.
  explicit BfIoAutoPolicy(const PolicyOptions& options = {})
      : stop_(options.stop), urgency_(options.wait_ratio), counts_(options.stop), solver_(SolverSettings{}) {}

  static constexpr PlacementRule kRules[] = {PlacementRule::kRefill, PlacementRule::kHorizon,
                                             PlacementRule::kHeadroom, PlacementRule::kCounts};

  absl::string_view name() const override { return "bf_io_auto"; }
  absl::Span<const PlacementRule> placement_rules() const override { return kRules; }
  bool uses_first_come_waits() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // Places all requests by the snapshot's rule, while there are slots for all; false: a request fits nowhere.
  bool PlaceAll(const Snapshot& snapshot, Decision& decision);
  // Decides by the integer program.
  void Solve(const Snapshot& snapshot, const PoolScale& scale, Decision& decision);

  StopSignal stop_;
  FreeCapacity free_;
  UrgencyTracker urgency_;
  OversizedRequests oversized_;
  Headroom headroom_;
  Horizon horizon_;
  TrtllmPolicy counts_;
  Instance instance_;
  Solver solver_;
  LevelWorkers level_workers_;
};

}  // namespace bfio::core
