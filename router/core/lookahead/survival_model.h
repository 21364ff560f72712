// Learns how long requests run: one curve for all, one for each tenant, one for each tenant's prompts of
// about one length, each as far as its data carry.
//
// Purpose: the statistics behind `survival` and `hint`, apart from projecting. Every class leans on the class
// above it; both estimates are the posterior mean of a gamma prior on a Poisson rate:
//   all      the hazard of a bin leans on that of the bins before it (prior_requests endings strong), and at
//            the start on a constant hazard of 1 / prior_mean_tokens: a geometric length.
//   tenant   leans on all: first one factor for the whole curve (proportional hazards: longer or shorter than
//            others), then bin by bin, each pool_requests endings strong. Without history it is that of all.
//   leaf     a tenant's prompts of one octave, leaning on the tenant in the same way. On public traces the
//            prompt is informative: a tenth to a seventh of the log-loss at 20 tokens (docs/decision.md).
// Tables are rebuilt in Advance when a 64th of what they rest on is new, a few at each step, so that a step
// costs little however many classes there are.
// Deterministic: classes are numbered in the order they come. Threads: one.
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
  // The class of all.
  static constexpr int32_t kAll = 0;

  explicit SurvivalModel(const LookaheadOptions& options);

  // The leaf of a request. Tenants beyond max_groups share one.
  int32_t GroupOf(uint32_t tenant, int64_t prompt_tokens);
  // In the request's class and those above.
  void Observe(int32_t group, int64_t from, int64_t to, bool finished);
  void Advance();

  const SurvivalTable& Table(int32_t group) const { return classes_[classes_[group].source].table; }

 private:
  // Below 32 tokens, then by octaves; 32,768 and more.
  static constexpr int kPromptClasses = 12;
  static constexpr int32_t kNone = -1;

  struct Class {
    Class(const AgeLattice& lattice, double memory, int32_t parent, int32_t source)
        : counts(lattice, memory), parent(parent), source(source) {}
    HazardCounts counts;
    int32_t parent;
    // Whose table holds: its own once it is built, until then that of a class above.
    int32_t source;
    // By bin, and for every later token.
    std::vector<double> hazard;
    double tail = 0;
    SurvivalTable table;
    // Something was observed since the table was built; endings then; steps since.
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
  // Parents before children.
  std::vector<Class> classes_;
  // A tenant's own class, and its leaves; [0] is for those without one.
  struct Tenant {
    int32_t own = kAll;
    std::array<int32_t, kPromptClasses> leaves;
  };
  std::vector<Tenant> tenants_;
  absl::flat_hash_map<uint32_t, int32_t> tenant_of_;
  int64_t step_ = 0;
  // Where the next step goes on looking for tables to rebuild.
  size_t next_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_SURVIVAL_MODEL_H_
