// The energy of the workers' devices, summed over the router.
//
// Purpose: each worker reports the energy of its device since the worker began; several may report the
// same device. Owned by the decision thread; not thread-safe.
#ifndef BFIO_ROUTER_GROUP_ENERGY_BOOK_H_
#define BFIO_ROUTER_GROUP_ENERGY_BOOK_H_

#include <optional>

#include "absl/container/flat_hash_map.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

struct EnergyTotals {
  double busy_j = 0, barrier_j = 0, parked_j = 0;
};

class EnergyBook {
 public:
  // Takes a reading, and keeps it. Of what has come since the worker's last reading it counts its share:
  // workers that tell of the same device share it evenly. The first one counts nothing: it may reach back
  // beyond this router's start.
  void Take(MemberId member, const EnergyReading& reading);
  void Forget(MemberId member) { readings_.erase(member); }

  // Null before a reading.
  const EnergyReading* Of(MemberId member) const;
  // Nothing before any reading has come.
  const std::optional<EnergyTotals>& totals() const { return totals_; }

 private:
  absl::flat_hash_map<MemberId, EnergyReading> readings_;
  std::optional<EnergyTotals> totals_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_ENERGY_BOOK_H_
