// Urgency: how late every waiting request is, and the weight of admitting it for that.
//
// Purpose: balance alone would always prefer requests that fit well; the others must be admitted too. The
// reference is a first-come rule on the same arrivals. With P its recent 99th percentile of waits
// (Snapshot::first_come_p99):
//   late      a request that has waited more than kLateFactor * P. The price of waiting keeps their share at
//             kLateShare of the admissions: it rises with every late admission and falls with every
//             other one (stochastic approximation of a quantile; Robbins and Monro, 1951). So nothing has to
//             be tuned to prompt lengths, group size or load.
//   weight    price * S^2 * (age / (kLateFactor * P))^2, S being the scale of the balance: the pool's
//             deviation by what a token adds to the mean worker.
//   overdue   at age kDueFactor * P it is admitted next at any cost.
//   deferred  one request in 1 / kDeferredShare may wait kDeferredSteps longer: an overdue request that fits
//             no gap costs the group more idle time than all others together, and usually a gap of its size
//             opens meanwhile.
// A tenant that has been served more than others ages more slowly by its lead.
//
// Threads: one. Cost: O(waiting) per decision.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_URGENCY_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_URGENCY_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

class UrgencyTracker {
 public:
  struct Urgency {
    // Steps until it is overdue; 0 or less: it is.
    double slack = 0;
    bool deferred = false;
  };

  // Observes the pool for a decision that will admit `admissions` requests.
  void Observe(const Snapshot& snapshot, const PoolScale& scale, int64_t admissions);

  // By waiting index, for the snapshot observed last.
  absl::Span<const Urgency> urgencies() const { return urgencies_; }

  // Sets the weights of the items. An item whose reserved worker (oversized_requests.h) has no free slot yet
  // is not forced.
  void SetWeights(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const;

  // The plan that was made for the snapshot observed last; an empty one too.
  void Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan);

  // Requests admitted per decision, recently.
  double admissions() const { return admissions_; }
  double price() const { return price_; }

 private:
  void Defer(const Snapshot& snapshot, const PoolScale& scale);
  double AgeOf(const Snapshot& snapshot, const WaitingView& request) const;

  double price_ = 1;
  double admissions_ = 0;
  // Requests that may be deferred now: a share of the admissions so far.
  double deferrals_ = 0;
  // More requests waited than could be admitted.
  bool choice_ = false;
  // Tokens that a tenant may be ahead for each `late` of age.
  double tokens_per_late_ = 1;
  absl::flat_hash_set<RequestId> deferred_;
  std::vector<Urgency> urgencies_;
  // Scratch.
  std::vector<int32_t> due_;
  absl::flat_hash_set<RequestId> kept_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_URGENCY_H_
