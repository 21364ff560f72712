// Learns how long requests run: one curve for all, and one for each tenant as far as its data carry.
//
// Purpose: the statistics behind `survival` and `hint`, apart from projecting. Two levels of shrinkage, both
// the posterior mean of a gamma prior on a Poisson rate:
//   pooled   the hazard of a bin leans on that of the bins before it (prior_requests endings strong), and at
//            the start on a constant hazard of 1 / prior_mean_tokens: a geometric length.
//   tenant   first one factor for the whole curve (proportional hazards: longer or shorter than others), then
//            bin by bin, each pool_requests endings strong. A tenant with no history has the pooled curve.
// Tables are rebuilt in Advance, when a 64th of what they rest on is new, so that a step costs little.
// Deterministic: tenants are numbered in the order they come.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "router/core/lookahead/hazard_counts.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival_table.h"

namespace bfio::core {

class SurvivalModel {
 public:
  explicit SurvivalModel(const LookaheadOptions& options);

  // Group 0 is everybody's: tenants beyond max_groups.
  int32_t GroupOf(uint32_t tenant);
  void Observe(int32_t group, int64_t from, int64_t to, bool finished);
  void Advance();

  const SurvivalTable& Table(int32_t group) const {
    const Class& own = classes_[group];
    return own.built ? own.table : classes_[0].table;
  }

 private:
  struct Class {
    explicit Class(const AgeLattice& lattice, double memory) : counts(lattice, memory) {}
    HazardCounts counts;
    SurvivalTable table;
    bool built = false;
    // Something was observed since the table was built; endings then; steps since.
    bool dirty = false;
    int64_t built_endings = 0;
    int64_t age_steps = 0;
  };

  bool Due(const Class& c) const;
  void BuildPooled();
  void BuildTenant(Class& c);

  LookaheadOptions options_;
  AgeLattice lattice_;
  // [0] is the pooled one.
  std::vector<Class> classes_;
  // By bin of the pooled class, and what follows.
  std::vector<double> pooled_hazard_;
  double pooled_tail_ = 0;
  absl::flat_hash_map<uint32_t, int32_t> group_of_;
  std::vector<double> hazard_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_
