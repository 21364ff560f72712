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
//             reserved worker (oversized_requests.h) if that gets a free slot within kReservedShare * r P
//             steps.
// Requests of a tenant that has been served more than others count as younger by the tenant's lead. Their
// limit is delayed only as far as a fair order of the tenants would also let them wait longer than P.
//
// Threads: one. Cost: O(waiting) per decision.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

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

}  // namespace bfio::core
