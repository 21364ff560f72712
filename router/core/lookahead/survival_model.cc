#include "router/core/lookahead/survival_model.h"

#include <algorithm>

namespace bfio::core {
namespace {

// How much of what a bin's prior mean rests on each further bin forgets: about five bins' worth remain.
constexpr double kNeighbourMemory = 0.8;
// A bin's own prior, in endings, for each of prior_requests.
constexpr double kBinPrior = 0.5;
// A table is rebuilt when one in so many of its endings is new, and after so many steps in any case.
constexpr double kRebuildShare = 64;
constexpr int64_t kRebuildSteps = 64;
constexpr double kMaxHazard = 1 - 1e-9;

}  // namespace

SurvivalModel::SurvivalModel(const LookaheadOptions& options)
    : options_(options), lattice_(options.ages_per_octave) {
  classes_.emplace_back(lattice_, options_.memory_requests);
  BuildPooled();
}

int32_t SurvivalModel::GroupOf(uint32_t tenant) {
  const auto it = group_of_.find(tenant);
  if (it != group_of_.end()) return it->second;
  if (static_cast<int32_t>(classes_.size()) > options_.max_groups) return 0;
  const int32_t group = static_cast<int32_t>(classes_.size());
  classes_.emplace_back(lattice_, options_.memory_requests);
  group_of_.emplace(tenant, group);
  return group;
}

void SurvivalModel::Observe(int32_t group, int64_t from, int64_t to, bool finished) {
  if (from >= to) return;
  classes_[0].counts.Observe(from, to, finished);
  classes_[0].dirty = true;
  if (group == 0) return;
  classes_[group].counts.Observe(from, to, finished);
  classes_[group].dirty = true;
}

bool SurvivalModel::Due(const Class& c) const {
  if (!c.dirty) return false;
  const double fresh = static_cast<double>(c.counts.observed() - c.built_endings);
  return (fresh > 0 && fresh * kRebuildShare >= c.counts.total_ended()) || c.age_steps >= kRebuildSteps;
}

void SurvivalModel::Advance() {
  for (Class& c : classes_) {
    ++c.age_steps;
    if (!Due(c)) continue;
    if (&c == &classes_[0]) {
      BuildPooled();
    } else {
      BuildTenant(c);
    }
    c.dirty = false;
    c.built_endings = c.counts.observed();
    c.age_steps = 0;
  }
}

void SurvivalModel::BuildPooled() {
  Class& pooled = classes_[0];
  const double strength = options_.prior_requests, own = kBinPrior * strength;
  // Endings and exposure in the bins before, the nearest most.
  double ended = 0, exposed = 0;
  const auto prior = [&] {
    const double tokens = exposed + strength * options_.prior_mean_tokens;
    return tokens > 0 ? (ended + strength) / tokens : 0;
  };
  pooled_hazard_.clear();
  for (int32_t bin = 0; bin < pooled.counts.bins(); ++bin) {
    const double d = pooled.counts.Ended(bin), n = pooled.counts.Exposed(bin), mean = prior();
    const double tokens = n + (mean > 0 ? own / mean : 0);
    pooled_hazard_.push_back(std::min(tokens > 0 ? (d + own) / tokens : 0, kMaxHazard));
    ended = kNeighbourMemory * ended + d;
    exposed = kNeighbourMemory * exposed + n;
  }
  pooled_tail_ = std::min(prior(), kMaxHazard);
  pooled.table.Build(lattice_, pooled_hazard_, pooled_tail_);
  pooled.built = true;
}

void SurvivalModel::BuildTenant(Class& c) {
  const double strength = options_.pool_requests;
  double ended = strength, expected = strength;
  for (int32_t bin = 0; bin < c.counts.bins(); ++bin) {
    const double pooled =
        bin < static_cast<int32_t>(pooled_hazard_.size()) ? pooled_hazard_[bin] : pooled_tail_;
    ended += c.counts.Ended(bin);
    expected += pooled * c.counts.Exposed(bin);
  }
  const double factor = expected > 0 ? ended / expected : 1;
  hazard_.clear();
  for (size_t bin = 0; bin < pooled_hazard_.size(); ++bin) {
    const bool seen = static_cast<int32_t>(bin) < c.counts.bins();
    const double d = seen ? c.counts.Ended(static_cast<int32_t>(bin)) : 0;
    const double n = seen ? c.counts.Exposed(static_cast<int32_t>(bin)) : 0;
    const double pooled = pooled_hazard_[bin];
    const double tokens = n + (pooled > 0 ? strength / pooled : 0);
    hazard_.push_back(std::min(tokens > 0 ? (d + strength * factor) / tokens : 0, kMaxHazard));
  }
  c.table.Build(lattice_, hazard_, std::min(pooled_tail_ * factor, kMaxHazard));
  c.built = true;
}

}  // namespace bfio::core
