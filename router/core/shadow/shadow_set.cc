#include "router/core/shadow/shadow_set.h"

#include <algorithm>
#include <utility>

namespace bfio::core {

ShadowSet::ShadowSet(std::vector<std::unique_ptr<Policy>> shadows, StopSignal stop)
    : shadows_(std::move(shadows)), stop_(std::move(stop)) {
  ResetRegrets();
}

bool ShadowSet::uses_first_come_waits() const {
  return std::any_of(shadows_.begin(), shadows_.end(),
                     [](const auto& shadow) { return shadow->uses_first_come_waits(); });
}

bool ShadowSet::uses_prefixes() const {
  return std::any_of(shadows_.begin(), shadows_.end(),
                     [](const auto& shadow) { return shadow->uses_prefixes(); });
}

void ShadowSet::ResetRegrets() {
  regrets_.assign(shadows_.size(), ShadowRegret());
  for (size_t i = 0; i < shadows_.size(); ++i) regrets_[i].policy = std::string(shadows_[i]->name());
}

void ShadowSet::Observe(const Snapshot& snapshot, absl::Span<const Assignment> acting) {
  const PlanValue ours = meter_.Measure(snapshot, acting);
  const size_t count = shadows_.size();
  bool stopped = false;
  size_t next = first_;
  for (size_t n = 0; n < count; ++n) {
    const size_t shadow = (first_ + n) % count;
    if (!stopped && stop_ && stop_()) {
      stopped = true;
      next = shadow;
    }
    if (stopped) {
      ++regrets_[shadow].skipped;
    } else {
      ObserveOne(snapshot, ours, shadow);
    }
  }
  first_ = next;
}

void ShadowSet::ObserveOne(const Snapshot& snapshot, const PlanValue& ours, size_t shadow) {
  decision_.Clear();
  shadows_[shadow]->Decide(snapshot, decision_);
  const PlanValue theirs = meter_.Measure(snapshot, decision_.assignments);
  ShadowRegret& regret = regrets_[shadow];
  ++regret.decisions;
  const double now = theirs.idle_now - ours.idle_now, ahead = theirs.idle_ahead - ours.idle_ahead;
  if (now > 0) regret.avoided.Add(now);
  if (now < 0) regret.missed.Add(-now);
  (ahead > 0 ? regret.avoided_ahead : regret.missed_ahead) += ahead > 0 ? ahead : -ahead;
  regret.longer += theirs.longest_now - ours.longest_now;
}

}  // namespace bfio::core
