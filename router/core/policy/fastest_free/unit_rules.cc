#include "router/core/policy/fastest_free/unit_rules.h"

namespace bfio::core {

int32_t FastestFree(absl::Span<const UnitView> units) {
  for (size_t k = 0; k < units.size(); ++k) {
    if (units[k].free()) return static_cast<int32_t>(k);
  }
  return kCentralQueue;
}

int32_t FewestJobsFree(absl::Span<const UnitView> units) {
  int32_t best = kCentralQueue;
  for (size_t k = 0; k < units.size(); ++k) {
    if (units[k].free() && (best == kCentralQueue || units[k].jobs < units[best].jobs))
      best = static_cast<int32_t>(k);
  }
  return best;
}

int32_t IdleFree(absl::Span<const UnitView> units, Rng& rng) {
  const int32_t idle = AtRandom(units, rng, [](const UnitView& unit) { return unit.jobs == 0; });
  return idle != kCentralQueue ? idle
                               : AtRandom(units, rng, [](const UnitView& unit) { return unit.free(); });
}

}  // namespace bfio::core
