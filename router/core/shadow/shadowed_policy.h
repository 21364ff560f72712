// A policy with shadows: decides as the acting policy does, and keeps the shadows' regrets.
//
// Purpose: a decorator, so that the caller of a Policy needs no code for shadows. The shadows get the acting
// policy's snapshots, as far ahead as its horizon. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_SHADOW_SHADOWED_POLICY_H_
#define BFIO_ROUTER_CORE_SHADOW_SHADOWED_POLICY_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/core/policy/policy.h"
#include "router/core/shadow/shadow_set.h"

namespace bfio::core {

class ShadowedPolicy final : public Policy {
 public:
  ShadowedPolicy(std::unique_ptr<Policy> acting, ShadowSet shadows)
      : acting_(std::move(acting)), shadows_(std::move(shadows)) {}

  absl::string_view name() const override { return acting_->name(); }
  int32_t horizon() const override { return acting_->horizon(); }
  absl::Span<const PlacementRule> placement_rules() const override { return acting_->placement_rules(); }
  bool uses_first_come_waits() const override {
    return acting_->uses_first_come_waits() || shadows_.uses_first_come_waits();
  }
  bool uses_prefixes() const override { return acting_->uses_prefixes() || shadows_.uses_prefixes(); }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    acting_->Decide(snapshot, decision);
    if (!snapshot.waiting.empty()) shadows_.Observe(snapshot, decision.assignments);
  }
  bool meters_prompts() const override { return acting_->meters_prompts(); }

  const ShadowSet* shadows() const override { return &shadows_; }
  ShadowSet& mutable_shadows() { return shadows_; }

 private:
  std::unique_ptr<Policy> acting_;
  ShadowSet shadows_;
};

// Creates the named shadows. options.stop does not apply to them, because regrets compare plans without a
// time limit. `stop` returns true when the shadows that have not planned yet must be skipped.
// INVALID_ARGUMENT as from MakePolicy.
absl::StatusOr<ShadowSet> MakeShadows(const PolicyOptions& options, const std::vector<std::string>& shadows,
                                      StopSignal stop = {});

// Creates the named policy with the named shadows; the policy alone when no shadow is named.
absl::StatusOr<std::unique_ptr<Policy>> MakeShadowedPolicy(absl::string_view name,
                                                           const PolicyOptions& options,
                                                           const std::vector<std::string>& shadows,
                                                           StopSignal stop = {});

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SHADOW_SHADOWED_POLICY_H_
