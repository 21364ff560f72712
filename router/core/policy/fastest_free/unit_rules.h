// Chooses the unit that takes a request, by the units' rates and by their numbers of jobs.
//
// Purpose: the rules of the policies jffc, sa_jsq and jiq, for units that serve several jobs at
// once: here ranks that step independently, in research/chains/dispatcher.h chains of servers. Threads: no
// state.
#ifndef BFIO_ROUTER_CORE_POLICY_FASTEST_FREE_UNIT_RULES_H_
#define BFIO_ROUTER_CORE_POLICY_FASTEST_FREE_UNIT_RULES_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/rng.h"

namespace bfio::core {

struct UnitView {
  double rate = 0;       // mu of one job, per second
  int64_t capacity = 0;  // c
  int64_t jobs = 0;      // Z: in service and in its own queue

  bool free() const { return jobs < capacity; }
};

// No unit is free: the job waits in the central queue.
inline constexpr int32_t kCentralQueue = -1;

// All rules REQUIRE: `units` are sorted, fastest first.

// Join-the-Fastest-Free-Chain (Algorithm 3 of "Serving Chain-structured Jobs with Large Memory Footprints").
int32_t FastestFree(absl::Span<const UnitView> units);
// The fastest of the free units with the fewest jobs.
int32_t FewestJobsFree(absl::Span<const UnitView> units);
// A random idle unit; if none is idle, a random free unit.
int32_t IdleFree(absl::Span<const UnitView> units, Rng& rng);

// A random unit for which `fits` holds, all equally likely, or kCentralQueue.
template <class Fits>
int32_t AtRandom(absl::Span<const UnitView> units, Rng& rng, const Fits& fits) {
  const auto many = static_cast<uint64_t>(std::count_if(units.begin(), units.end(), fits));
  if (many == 0) return kCentralQueue;
  uint64_t left = rng.Below(many);
  for (size_t k = 0;; ++k) {
    if (fits(units[k]) && left-- == 0) return static_cast<int32_t>(k);
  }
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_FASTEST_FREE_UNIT_RULES_H_
