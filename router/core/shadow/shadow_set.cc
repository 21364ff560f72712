#include "router/core/shadow/shadow_set.h"

#include <utility>

namespace bfio::core {

ShadowSet::ShadowSet(std::vector<std::unique_ptr<Policy>> shadows) : shadows_(std::move(shadows)) {
  ResetRegrets();
}

void ShadowSet::ResetRegrets() {
  regrets_.assign(shadows_.size(), ShadowRegret());
  for (size_t i = 0; i < shadows_.size(); ++i) regrets_[i].policy = std::string(shadows_[i]->name());
}

void ShadowSet::Observe(const Snapshot& snapshot, absl::Span<const Assignment> acting) {
  const PlanValue ours = meter_.Measure(snapshot, acting);
  for (size_t i = 0; i < shadows_.size(); ++i) {
    plan_.clear();
    shadows_[i]->Decide(snapshot, plan_);
    const PlanValue theirs = meter_.Measure(snapshot, plan_);
    ShadowRegret& regret = regrets_[i];
    ++regret.decisions;
    const double now = theirs.idle_now - ours.idle_now, ahead = theirs.idle_ahead - ours.idle_ahead;
    if (now > 0) regret.avoided.Add(now);
    if (now < 0) regret.missed.Add(-now);
    (ahead > 0 ? regret.avoided_ahead : regret.missed_ahead) += ahead > 0 ? ahead : -ahead;
    regret.longer += theirs.longest_now - ours.longest_now;
  }
}

}  // namespace bfio::core
