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
//            prompt is informative: a tenth to a seventh of the log-loss at 20 tokens
//            (docs/design/decision.md).
// Advance rebuilds tables when a 64th of their data is new, a few at each step, so that a step's cost does
// not depend on the number of classes. Deterministic: classes are numbered in the order of arrival. Threads:
// one.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

// Bins of ages: one per age while young, of relative width 1 / `per_octave` when old. Hazards are estimated
// per bin, so that an age that few requests reach uses the data of its neighbours. Ages here are token
// numbers, counted from 1. Plain arithmetic. Threads: any; constant after construction.
class AgeLattice {
 public:
  // Token numbers from here on share the last bin.
  static constexpr int64_t kMaxToken = int64_t{1} << 20;

  // REQUIRES: per_octave is a power of two.
  explicit AgeLattice(int32_t per_octave)
      : per_octave_(per_octave), bits_(std::countr_zero(Unsigned(per_octave))) {}

  // REQUIRES: token >= 1.
  int32_t Bin(int64_t token) const {
    const uint64_t v = Unsigned(std::min(token, kMaxToken) - 1);
    if (v < Unsigned(2 * int64_t{per_octave_})) return static_cast<int32_t>(v);
    const int shift = std::bit_width(v) - 1 - bits_;
    return shift * per_octave_ + static_cast<int32_t>(v >> shift);
  }

  // The smallest token number of the bin.
  int64_t First(int32_t bin) const {
    if (bin < 2 * per_octave_) return int64_t{bin} + 1;
    const int32_t shift = bin / per_octave_ - 1;
    return (int64_t{bin - shift * per_octave_} << shift) + 1;
  }

  int32_t bins() const { return Bin(kMaxToken) + 1; }

 private:
  static constexpr uint64_t Unsigned(int64_t v) { return static_cast<uint64_t>(v); }

  int32_t per_octave_;
  int bits_;
};

// P(length > age) for every age, stored so that it can be read h steps ahead. Converts hazards per bin of
// ages to one array, so that P(length > x + h | length > a) is a quotient of two entries, and a projection
// reads memory in order. Beyond the oldest age ever seen the hazard is constant: older requests count as
// being that old. That hazard is estimated from few endings. Its uncertainty dominates far beyond that age,
// so P is there the predictive probability of a gamma posterior of the hazard (a Pareto tail). Threads: one
// builds it; any may read it afterwards.
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

// Counts of requests that ended at each age, and of those that could have: the data of a Kaplan-Meier curve.
// Exposure (requests that could have ended with a token of the bin) and endings, per bin of an AgeLattice,
// decayed so that the last `memory` endings have the most weight. Censoring needs no special treatment: a
// request is exposed for the tokens that it was seen to generate, and no longer. Source: Kaplan and Meier
// 1958, in its occurrence/exposure form, with forward decay (Cormode et al. 2009): an observation costs
// O(bins it spans), and the counts are swept only for a rare rescaling. Threads: one.
class HazardCounts {
 public:
  // REQUIRES: memory > 0, in endings; infinity: no decay.
  HazardCounts(const AgeLattice& lattice, double memory) : lattice_(lattice), growth_(std::exp(1 / memory)) {}

  // The request could have ended with tokens from + 1 .. to, and ended with `to` if `finished`. REQUIRES: 0
  // <= from <= to, from < to if finished.
  void Observe(int64_t from, int64_t to, bool finished);

  // Decayed counts; the newest observation has weight 1.
  double Exposed(int32_t bin) const { return exposed_[bin] / weight_; }
  double Ended(int32_t bin) const { return ended_[bin] / weight_; }
  double total_ended() const { return total_ended_ / weight_; }
  // Number of bins seen so far.
  int32_t bins() const { return static_cast<int32_t>(exposed_.size()); }
  const AgeLattice& lattice() const { return lattice_; }
  // Number of endings observed since the start, without decay.
  int64_t observed() const { return observed_; }

 private:
  AgeLattice lattice_;
  double growth_;
  // Weight of an observation now; grows by growth_ with every ending.
  double weight_ = 1;
  std::vector<double> exposed_;
  std::vector<double> ended_;
  double total_ended_ = 0;
  int64_t observed_ = 0;
};

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
