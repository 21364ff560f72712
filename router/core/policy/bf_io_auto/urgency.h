// Urgency: how late every waiting request is, and the weight of admitting it for that.
//
// Purpose: balance alone would always prefer requests that fit well; the others must be admitted too. The
// reference is a first-come rule on the same arrivals, per class of priority and in fair order of its tenants
// (Snapshot::first_come). With P its recent 99th percentile of waits, Q the same over a longer time, and r
// the configured wait ratio (PolicyOptions::wait_ratio):
//   late      a request that has waited more than r Q. The price of waiting keeps their share of the
//             admissions at kLateShare, so that the 99th percentile of the waits is r Q: it rises with every
//             late admission and falls with every other one (stochastic approximation of a quantile; Robbins
//             and Monro, 1951). So nothing has to be tuned to prompt lengths, group size or load.
//   weight    price * S^2 * (age / (r P))^2, S being the scale of the balance: the pool's deviation by what a
//             token adds to the mean worker.
//   overdue   a step before age kDueFactor * r P it is admitted next whatever the imbalance; on its reserved
//             worker (oversized_requests.h), if that gets a free slot within kReservedShare * r P steps.
// Requests of a tenant that has been served more than others count as younger by its lead. That delays their
// limit only as far as a fair order of the tenants, too, lets them wait longer than P.
//
// Threads: one. Cost: O(waiting) per decision.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_URGENCY_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_URGENCY_H_

#include <cstddef>
#include <cstdint>
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

  // Steps until a request is overdue, by waiting index, for the snapshot observed last; at 1 or
  // less it is admitted next whatever the imbalance.
  absl::Span<const double> slacks() const { return slacks_; }

  // Sets the weights of the items.
  void SetWeights(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const;

  // The plan that was made for the snapshot observed last; an empty one too.
  void Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan);

  // Requests admitted per decision, recently.
  double admissions() const { return admissions_; }
  double price() const { return price_; }

 private:
  const double wait_ratio_;
  // At first the middle of where it settles: 0.2 to 4 where prompts are alike or many requests are admitted
  // per step, 60 to 200 where prompts are long or few are admitted.
  double price_ = 20;
  double admissions_ = 0;
  // By waiting index: r P of its class, at least a step; steps that it counts as younger by its tenant's
  // lead, and those of them that delay its limit; steps until it is overdue.
  std::vector<double> scales_, leads_, delays_, slacks_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_URGENCY_H_
