// P(length > age) for every age, ready to be read h steps on.
//
// Purpose: hazards per bin of ages become one array, so that P(length > x + h | length > a) is a quotient of
// two entries and a projection walks memory in order. Past the oldest age that was ever seen the hazard is
// constant: older requests are treated as being that old. Threads: one builds it, any may read it then.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_TABLE_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/lookahead/age_lattice.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

class SurvivalTable {
 public:
  // hazards[b] is the probability of ending with a token of bin b for a request that gets there; `tail` that
  // of every later token.
  void Build(const AgeLattice& lattice, absl::Span<const double> hazards, double tail);

  // Entry [i] is proportional to P(length > age + i); good up to i = kReach.
  const double* From(int64_t age) const { return &survival_[std::min(age, limit_)]; }

  static constexpr int64_t kReach = kMaxHorizonSteps + 192;

  // P(length > age + ahead | length > age), or more where the table does not reach.
  double Stay(int64_t age, int64_t ahead) const {
    const int64_t from = std::min(age, limit_);
    return survival_[std::min(from + ahead, limit_ + kReach)] / survival_[from];
  }

  static constexpr int64_t kMostAhead = 128;
  // Steps from what is known of a request to the plan's step, as far as the table reaches; more than two are
  // rare.
  static int64_t Ahead(const Standing& standing) {
    return std::min(standing.plan_age - standing.known_age, kMostAhead);
  }

 private:
  std::vector<double> survival_;
  int64_t limit_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_TABLE_H_
