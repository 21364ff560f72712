// Whose turn it is: how late every waiting request is, and what admitting it is worth for that.
//
// Purpose: balance asks for whatever fits; somebody who fits badly must get in all the same. The measure is
// what a first-come rule would do to the same arrivals. With P its recent 99th percentile
// (Snapshot::first_come_p99):
//   late    a request that has waited more than kLateFactor * P. Their share is held at kLateShare of the
//           admissions by the price of waiting, which rises with every late admission and falls with every
//           other one (Robbins and Monro's way to a quantile, 1951), so that nothing has to be tuned to
//           prompt lengths, group size or load.
//   worth   price * S^2 * (age / (kLateFactor * P))^2, S being the scale of the balance: the pool's deviation
//           by what a token adds to the mean worker.
//   due     at age kDueFactor * P it goes next, whatever it costs.
//   spared  one request in 1 / kSpareShare may wait kSpareSteps longer: the misfit that is due costs the
//           whole group more idle time than all others together, and usually a gap of its size opens
//           meanwhile.
// A tenant that has been served more than others ages more slowly by what it is ahead.
//
// Threads: one. Cost: O(waiting) per decision.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_TURNS_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_TURNS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

class Turns {
 public:
  struct Turn {
    // Steps until it is due; 0 or less: now.
    double slack = 0;
    bool spared = false;
  };

  // Looks at the pool for a decision that will admit `seats` requests.
  void Observe(const Snapshot& snapshot, const PoolScale& scale, int64_t seats);

  // By waiting index, for the snapshot observed last.
  absl::Span<const Turn> turns() const { return turns_; }

  // Sets the worths of the items. An item whose home (preparation.h) has no slot free yet is not forced.
  void SetWorths(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const;

  // The plan that was made for the snapshot observed last; an empty one too.
  void Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan);

  // Requests admitted per decision, recently.
  double seats() const { return seats_; }
  double price() const { return price_; }

 private:
  void Spare(const Snapshot& snapshot, const PoolScale& scale);
  double AgeOf(const Snapshot& snapshot, const WaitingView& request) const;

  double price_ = 1;
  double seats_ = 0;
  // Requests that may be spared now, as earned by admissions so far.
  double spare_ = 0;
  // There were more waiting than seats.
  bool choice_ = false;
  // Tokens that a tenant may be ahead for each `late` of age.
  double tokens_per_late_ = 1;
  absl::flat_hash_set<RequestId> spared_;
  std::vector<Turn> turns_;
  // Scratch.
  std::vector<int32_t> due_;
  absl::flat_hash_set<RequestId> kept_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_TURNS_H_
