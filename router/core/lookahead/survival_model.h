// Learns how long requests run: one curve for all, one for each tenant, and one for each tenant's prompts of
// similar length, each used as far as its data suffice.
//
// Purpose: the statistics of `survival` and `hint`. Every class uses the class above it as a prior; both
// estimates are the posterior mean of a gamma prior on a Poisson rate:
//   all      the prior of a bin's hazard is that of the bins before it (weight: prior_requests endings), and
//            at the start a constant hazard of 1 / prior_mean_tokens: a geometric length.
//   tenant   the prior is all: first one factor for the whole curve (proportional hazards: longer or shorter
//            than others), then bin by bin, each with the weight of pool_requests endings. Without history it
//            equals all.
//   leaf     a tenant's prompts of one octave, with the tenant as prior in the same way. On public traces the
//            prompt is informative: a tenth to a seventh of the log-loss at 20 tokens (docs/decision.md).
// Advance rebuilds tables when a 64th of their data is new, a few at each step, so that a step's cost does
// not depend on the number of classes. Deterministic: classes are numbered in the order of arrival. Threads:
// one.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "router/core/lookahead/hazard_counts.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival_table.h"

namespace bfio::core {

class SurvivalModel {
 public:
  // The class of all requests.
  static constexpr int32_t kAll = 0;

  explicit SurvivalModel(const LookaheadOptions& options);

  // The leaf of a request. Tenants beyond max_groups share one.
  int32_t GroupOf(uint32_t tenant, int64_t prompt_tokens);
  // Counts for the request's class and those above it.
  void Observe(int32_t group, int64_t from, int64_t to, bool finished);
  void Advance();

  const SurvivalTable& Table(int32_t group) const { return classes_[classes_[group].source].table; }

 private:
  // Prompts below 32 tokens, then octaves, the last from 32,768 tokens on.
  static constexpr int kPromptClasses = 12;
  static constexpr int32_t kNone = -1;

  struct Class {
    Class(const AgeLattice& lattice, double memory, int32_t parent, int32_t source)
        : counts(lattice, memory), parent(parent), source(source) {}
    HazardCounts counts;
    int32_t parent;
    // The class whose table is used: its own once that is built, until then a class above.
    int32_t source;
    // By bin; `tail`: for every later token.
    std::vector<double> hazard;
    SurvivalTable::Tail tail;
    SurvivalTable table;
    // Whether something was observed since the table was built; the number of endings at that build, and its
    // step.
    bool dirty = false;
    int64_t built_endings = 0;
    int64_t built_step = 0;
  };

  int32_t NewClass(int32_t parent);
  bool Due(const Class& c) const;
  void Build(int32_t index);
  void EstimateAll(Class& c) const;
  void EstimateBelow(Class& c, const Class& above) const;

  LookaheadOptions options_;
  AgeLattice lattice_;
  // All classes, parents before children.
  std::vector<Class> classes_;
  // A tenant's own class, and its leaves; [0] is for tenants without their own.
  struct Tenant {
    int32_t own = kAll;
    std::array<int32_t, kPromptClasses> leaves;
  };
  std::vector<Tenant> tenants_;
  absl::flat_hash_map<uint32_t, int32_t> tenant_of_;
  int64_t step_ = 0;
  // Where the next step continues to look for tables to rebuild.
  size_t next_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_
