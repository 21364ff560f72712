#include "router/group/energy_book.h"

#include <algorithm>
#include <utility>

namespace bfio::router {

void EnergyBook::Take(MemberId member, const EnergyReading& reading) {
  const auto [it, first] = readings_.try_emplace(member, reading);
  if (!totals_) totals_.emplace();
  if (first) return;
  const EnergyReading before = std::exchange(it->second, reading);
  // Another device name, or smaller sums, mean that the counters have started again.
  if (before.device != reading.device) return;
  const double busy = reading.busy_j - before.busy_j;
  const double barrier = reading.barrier_j - before.barrier_j;
  const double parked = reading.parked_j - before.parked_j;
  if (busy < 0 || barrier < 0 || parked < 0) return;
  const auto sharers = std::count_if(readings_.begin(), readings_.end(), [&](const auto& other) {
    return other.second.device == reading.device;
  });
  const double share = 1 / static_cast<double>(sharers);
  totals_->busy_j += share * busy;
  totals_->barrier_j += share * barrier;
  totals_->parked_j += share * parked;
}

const EnergyReading* EnergyBook::Of(MemberId member) const {
  const auto it = readings_.find(member);
  return it == readings_.end() ? nullptr : &it->second;
}

}  // namespace bfio::router
