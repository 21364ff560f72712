#include "router/core/lookahead/survival_table.h"

#include <cmath>

namespace bfio::core {
namespace {

// Longest table, and smallest entry; beyond both the hazard is that of the tail.
constexpr int64_t kMaxAge = 32768;
constexpr double kMinSurvival = 1e-200;

}  // namespace

void SurvivalTable::Build(const AgeLattice& lattice, absl::Span<const double> hazards, const Tail& tail) {
  survival_.assign(1, 1.0);
  double alive = 1;
  int64_t token = 1;
  for (int32_t bin = 0; bin < static_cast<int32_t>(hazards.size()) && alive > kMinSurvival; ++bin) {
    const double stay = 1 - hazards[bin];
    for (const int64_t end = lattice.First(bin + 1); token < end && token <= kMaxAge; ++token) {
      const double next = alive * stay;
      if (next < kMinSurvival) {
        alive = 0;  // ends the table here
        break;
      }
      survival_.push_back(alive = next);
    }
  }
  limit_ = static_cast<int64_t>(survival_.size()) - 1;
  alive = survival_.back();
  for (int64_t i = 0; i <= kReach; ++i) survival_.push_back(alive *= 1 - tail.hazard);
  beyond_.clear();
  for (int32_t bin = 0; bin < FarLattice().bins(); ++bin) {
    const double expected = tail.hazard * static_cast<double>(FarLattice().First(bin));
    beyond_.push_back(std::pow(1 + expected / tail.endings, -tail.endings));
  }
}

}  // namespace bfio::core
