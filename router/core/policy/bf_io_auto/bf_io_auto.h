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
//                   (Urgency). Workers are reserved for requests that fit no gap (OversizedRequests).
// docs/design/decision.md describes the alternatives. Classes of priority are strict.
//
// Threads: as Policy. Deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/bf_io_auto/headroom.h"
#include "router/core/policy/bf_io_auto/horizon.h"
#include "router/core/policy/level_workers.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/policy/trtllm/trtllm.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

// Urgency: how late every waiting request is, and the weight that this gives to its admission.
//
// Purpose: balance alone would always prefer requests that fit well; the others must be admitted too. The
// reference is a first-come rule on the same arrivals, per class of priority and in fair order of its tenants
// (Snapshot::first_come). With P its recent 99th percentile of waits, Q the same over a longer time, and r
// the configured wait ratio (PolicyOptions::wait_ratio):
//   late      a request that has waited more than r Q. The price rises with every late admission and falls
//             with every other one. This keeps the late share of the admissions at kLateShare, so that the
//             99th percentile of the waits is r Q (stochastic approximation of a quantile; Robbins and Monro,
//             1951). So nothing has to be tuned to prompt lengths, group size or load.
//   weight    price * S^2 * (age / (r P))^2, S being the scale of the balance: the pool's deviation by what a
//             token adds to the mean worker.
//   overdue   a step before age kDueFactor * r P a request is admitted next, whatever the imbalance: on its
//             reserved worker (OversizedRequests) if that gets a free slot within kReservedShare * r P
//             steps.
// Requests of a tenant that has been served more than others count as younger by the tenant's lead. Their
// limit is delayed only as far as a fair order of the tenants would also let them wait longer than P.
//
// Threads: one. Cost: O(waiting) per decision.
class UrgencyTracker {
 public:
  // REQUIRES: wait_ratio >= kLeastWaitRatio.
  explicit UrgencyTracker(double wait_ratio) : wait_ratio_(wait_ratio) {}

  // Observes the pool for a decision.
  void Observe(const Snapshot& snapshot);

  // Steps until a request is overdue, by waiting index, for the snapshot observed last. At 1 or less the
  // request is admitted next, whatever the imbalance.
  absl::Span<const double> slacks() const { return slacks_; }

  // Sets the weights of the items.
  void SetWeights(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const;

  // Learns from the plan that was made for the snapshot observed last. Call it for an empty plan too.
  void Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan);

  // Requests admitted per decision, recently.
  double admissions() const { return admissions_; }
  double price() const { return price_; }

 private:
  const double wait_ratio_;
  // Starts in the middle of the range where it settles: 0.2 to 4 where prompts have similar lengths or many
  // requests are admitted per step, 60 to 200 where prompts are long or few are admitted.
  double price_ = 20;
  double admissions_ = 0;
  // By waiting index: r P of the request's class, at least one step; steps by which it counts as younger
  // because of its tenant's lead; the part of them that delays its limit; steps until it is overdue.
  std::vector<double> scales_, leads_, delays_, slacks_;
};

// Workers reserved for requests that are too large for any gap. Completions open gaps of about the size of
// the completed requests. A request much larger than that cannot enter without raising a worker far above the
// rest, and the G - 1 others wait for every token of the excess until the worker's load has fallen again. A
// worker below the rest delays no other. So one of the least loaded workers is reserved for the request: part
// of the excess counts as its load in advance (precounted_tokens), so it gets small requests and its load
// falls. The part grows to the whole as the request becomes overdue (Urgency). Then the request fits an
// ordinary gap.
//
// The size of a gap and how fast a worker's load can fall are learnt from the loads of successive snapshots,
// in tokens. Threads: one. Cost: O(waiting + G log G) per decision.
class OversizedRequests {
 public:
  // Learns the sizes of the requests that completed since the last plan.
  void Observe(const Snapshot& snapshot);

  // Sets reserved_worker and precounted_tokens of oversized items, and precounts them. Only `level` workers
  // are reserved. `slacks`: steps until each request is overdue (Urgency). `admissions`: requests admitted
  // per decision.
  void Apply(const Snapshot& snapshot, absl::Span<const double> slacks, const PoolScale& scale,
             double admissions, absl::Span<const WorkerIndex> level, Instance& instance);

  // Mean load that a completion removes, tokens; 0 before the first completion.
  double completed_tokens() const { return gap_; }

  // Notes the plan that was made for the snapshot.
  void Remember(const Snapshot& snapshot, absl::Span<const Assignment> plan);

 private:
  struct Candidate {
    double precounted_tokens;
    int32_t item;
  };

  // Load and requests of each worker after the last plan, and that plan's step.
  struct After {
    int64_t load;
    int64_t active;
  };
  std::vector<After> after_;
  int64_t after_step_ = 0;
  double gap_ = 0;
  // Scratch.
  std::vector<Candidate> candidates_;
  std::vector<WorkerIndex> lowest_;
  std::vector<int64_t> sizes_;
};

class BfIoAutoPolicy final : public Policy {
 public:
  // It reads the options wait_ratio and stop.
  explicit BfIoAutoPolicy(const PolicyOptions& options = {})
      : stop_(options.stop), urgency_(options.wait_ratio), counts_(options.stop), solver_(SolverSettings{}) {}

  static constexpr PlacementRule kRules[] = {PlacementRule::kRefill, PlacementRule::kHorizon,
                                             PlacementRule::kHeadroom, PlacementRule::kCounts};

  absl::string_view name() const override { return "bf_io_auto"; }
  absl::Span<const PlacementRule> placement_rules() const override { return kRules; }
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
