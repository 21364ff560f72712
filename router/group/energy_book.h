// The energy of the workers' devices, summed over the router. Each worker reports the energy (joules) of its
// device since the worker started; several workers may report the same device. Owned by the decision thread;
// not thread-safe.
#pragma once

#include <optional>

#include "absl/container/flat_hash_map.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

struct EnergyTotals {
  double busy_j = 0, barrier_j = 0, parked_j = 0;
};

class EnergyBook {
 public:
  // Stores a reading and adds this worker's share of the energy since its previous reading to the totals.
  // Workers that report the same device share it evenly. A worker's first reading adds nothing, since it may
  // cover time before this router started.
  void Take(MemberId member, const EnergyReading& reading);
  void Forget(MemberId member) { readings_.erase(member); }

  // The member's last reading; null before its first one.
  const EnergyReading* Of(MemberId member) const;
  // Empty before the first reading.
  const std::optional<EnergyTotals>& totals() const { return totals_; }

 private:
  absl::flat_hash_map<MemberId, EnergyReading> readings_;
  std::optional<EnergyTotals> totals_;
};

}  // namespace bfio::router
