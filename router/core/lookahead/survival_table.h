// P(length > age) for every age, stored so that it can be read h steps ahead.
//
// Purpose: converts hazards per bin of ages to one array, so that P(length > x + h | length > a) is a
// quotient of two entries, and a projection reads memory in order. Beyond the oldest age ever seen the hazard
// is constant: older requests count as being that old. That hazard is estimated from few endings. Its
// uncertainty dominates far beyond that age, so P is there the predictive probability of a gamma posterior of
// the hazard (a Pareto tail). Threads: one builds it; any may read it afterwards.
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
  struct Tail {
    // Probability of ending with each token after the last bin: the mean of its posterior.
    double hazard = 0;
    // Number of endings from which `hazard` is estimated: the shape of the posterior. Positive.
    double endings = 1;
  };

  // hazards[b] is the probability of ending with a token of bin b for a request that reaches it.
  void Build(const AgeLattice& lattice, absl::Span<const double> hazards, const Tail& tail);

  // Entry [i] is proportional to P(length > age + i); valid up to i = kReach.
  const double* From(int64_t age) const { return &survival_[std::min(age, limit_)]; }

  static constexpr int64_t kReach = kMaxHorizonSteps + 192;

  // P(length > age + ahead | length > age). May overestimate it where age + ahead lies beyond the oldest age
  // by more than kReach.
  double SurvivalProbability(int64_t age, int64_t ahead) const {
    const int64_t from = std::min(age, limit_), beyond = from + ahead - (limit_ + kReach);
    if (beyond <= 0) return survival_[from + ahead] / survival_[from];
    return beyond_[FarLattice().Bin(beyond)] * survival_[limit_ + kReach] / survival_[from];
  }

  static constexpr int64_t kMostAhead = 128;
  // Steps from the known state of a request to the plan's step, limited to the table's reach; more than two
  // are rare.
  static int64_t Ahead(const Progress& progress) {
    return std::min(progress.plan_age - progress.known_age, kMostAhead);
  }

 private:
  // Bins of the distances beyond the table's reach; P is taken at the nearest token of a bin.
  static AgeLattice FarLattice() { return AgeLattice(8); }

  std::vector<double> survival_;
  int64_t limit_ = 0;
  // By bin of FarLattice: P(length > reach + distance | length > reach).
  std::vector<double> beyond_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_TABLE_H_
