#include "router/core/lookahead/survival_model.h"

namespace bfio::core {
namespace {

// Decay of a bin's prior data from bin to bin: about five bins contribute.
constexpr double kNeighbourMemory = 0.8;
// Weight of a bin's own prior, in endings, per prior_requests.
constexpr double kBinPrior = 0.5;
// A table is rebuilt when one in kRebuildShare of its endings is new, and after kRebuildSteps steps in any
// case.
constexpr double kRebuildShare = 64;
constexpr int64_t kRebuildSteps = 64;
// Maximum number of tables rebuilt in one step; one takes about 10 us.
constexpr int kRebuildsPerStep = 8;
constexpr double kMaxHazard = 1 - 1e-9;
// Minimum number of endings of a tail, for settings that give a prior no weight.
constexpr double kLeastEndings = 1e-3;
// log2 of the prompt length at which the second prompt class begins.
constexpr int kFirstPromptOctave = 5;

constexpr double kRescaleAbove = 1e100;

// Longest table, and smallest entry; beyond both the hazard is that of the tail.
constexpr int64_t kMaxAge = 32768;
constexpr double kMinSurvival = 1e-200;

}  // namespace

SurvivalModel::SurvivalModel(const LookaheadOptions& options)
    : options_(options), lattice_(options.ages_per_octave) {
  NewClass(kNone);
  Build(kAll);
  tenants_.emplace_back().leaves.fill(kNone);
}

int32_t SurvivalModel::NewClass(int32_t parent) {
  const int32_t index = static_cast<int32_t>(classes_.size());
  const int32_t source = parent == kNone ? index : classes_[parent].source;
  classes_.emplace_back(lattice_, options_.memory_requests, parent, source);
  return index;
}

int32_t SurvivalModel::GroupOf(uint32_t tenant, int64_t prompt_tokens) {
  int32_t slot = 0;
  if (const auto it = tenant_of_.find(tenant); it != tenant_of_.end()) {
    slot = it->second;
  } else if (static_cast<int32_t>(tenants_.size()) <= options_.max_groups) {
    slot = static_cast<int32_t>(tenants_.size());
    tenant_of_.emplace(tenant, slot);
    tenants_.emplace_back().leaves.fill(kNone);
    tenants_.back().own = NewClass(kAll);
  }
  const int octave = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(0, prompt_tokens)));
  int32_t& leaf = tenants_[slot].leaves[std::clamp(octave - kFirstPromptOctave, 0, kPromptClasses - 1)];
  if (leaf == kNone) leaf = NewClass(tenants_[slot].own);
  return leaf;
}

void SurvivalModel::Observe(int32_t group, int64_t from, int64_t to, bool finished) {
  if (from >= to) return;
  for (int32_t index = group; index != kNone; index = classes_[index].parent) {
    classes_[index].counts.Observe(from, to, finished);
    classes_[index].dirty = true;
  }
}

bool SurvivalModel::Due(const Class& c) const {
  if (!c.dirty) return false;
  const double fresh = static_cast<double>(c.counts.observed() - c.built_endings);
  return (fresh > 0 && fresh * kRebuildShare >= c.counts.total_ended()) ||
         step_ - c.built_step >= kRebuildSteps;
}

void SurvivalModel::Advance() {
  ++step_;
  if (Due(classes_[kAll])) Build(kAll);
  int built = 0;
  for (size_t looked = 0; looked < classes_.size() && built < kRebuildsPerStep; ++looked) {
    const size_t index = next_++ % classes_.size();
    if (!Due(classes_[index])) continue;
    Build(static_cast<int32_t>(index));
    ++built;
  }
  next_ %= classes_.size();
}

void SurvivalModel::Build(int32_t index) {
  Class& c = classes_[index];
  c.hazard.clear();
  if (c.parent == kNone) {
    EstimateAll(c);
  } else {
    EstimateBelow(c, classes_[classes_[c.parent].source]);
  }
  c.table.Build(lattice_, c.hazard, c.tail);
  c.source = index;
  c.dirty = false;
  c.built_endings = c.counts.observed();
  c.built_step = step_;
}

void SurvivalModel::EstimateAll(Class& c) const {
  const double strength = options_.prior_requests, own = kBinPrior * strength;
  // Endings and exposure in the bins before, decayed with distance.
  double ended = 0, exposed = 0;
  const auto prior = [&] {
    const double tokens = exposed + strength * options_.prior_mean_tokens;
    return tokens > 0 ? (ended + strength) / tokens : 0;
  };
  for (int32_t bin = 0; bin < c.counts.bins(); ++bin) {
    const double d = c.counts.Ended(bin), n = c.counts.Exposed(bin), mean = prior();
    const double tokens = n + (mean > 0 ? own / mean : 0);
    c.hazard.push_back(std::min(tokens > 0 ? (d + own) / tokens : 0, kMaxHazard));
    ended = kNeighbourMemory * ended + d;
    exposed = kNeighbourMemory * exposed + n;
  }
  c.tail = {std::min(prior(), kMaxHazard), std::max(ended + strength, kLeastEndings)};
}

void SurvivalModel::EstimateBelow(Class& c, const Class& above) const {
  const double strength = options_.pool_requests;
  double ended = strength, expected = strength;
  for (int32_t bin = 0; bin < c.counts.bins(); ++bin) {
    const bool known = bin < static_cast<int32_t>(above.hazard.size());
    ended += c.counts.Ended(bin);
    expected += (known ? above.hazard[bin] : above.tail.hazard) * c.counts.Exposed(bin);
  }
  const double factor = expected > 0 ? ended / expected : 1;
  for (int32_t bin = 0; bin < static_cast<int32_t>(above.hazard.size()); ++bin) {
    const bool seen = bin < c.counts.bins();
    const double d = seen ? c.counts.Ended(bin) : 0, n = seen ? c.counts.Exposed(bin) : 0;
    const double tokens = n + (above.hazard[bin] > 0 ? strength / above.hazard[bin] : 0);
    c.hazard.push_back(std::min(tokens > 0 ? (d + strength * factor) / tokens : 0, kMaxHazard));
  }
  c.tail = {std::min(above.tail.hazard * factor, kMaxHazard),
            std::max(std::min(above.tail.endings, ended), kLeastEndings)};
}

void HazardCounts::Observe(int64_t from, int64_t to, bool finished) {
  if (from >= to) return;
  const int32_t last = lattice_.Bin(to);
  if (last >= bins()) {
    exposed_.resize(static_cast<size_t>(last) + 1, 0);
    ended_.resize(static_cast<size_t>(last) + 1, 0);
  }
  for (int32_t bin = lattice_.Bin(from + 1); bin <= last; ++bin) {
    const int64_t low = std::max(from + 1, lattice_.First(bin));
    const int64_t high = bin == last ? to : lattice_.First(bin + 1) - 1;
    exposed_[bin] += weight_ * static_cast<double>(high - low + 1);
  }
  if (!finished) return;
  ended_[last] += weight_;
  total_ended_ += weight_;
  ++observed_;
  weight_ *= growth_;
  if (weight_ < kRescaleAbove) return;
  for (double& v : exposed_) v /= weight_;
  for (double& v : ended_) v /= weight_;
  total_ended_ /= weight_;
  weight_ = 1;
}

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
