// A policy with shadows: decides as the acting policy does, and keeps the shadows' regrets.
//
// Purpose: a decorator, so that whoever drives a Policy can have shadows without knowing of them. The
// shadows see the acting policy's snapshots, as far ahead as its horizon. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_SHADOW_SHADOWED_POLICY_H_
#define BFIO_ROUTER_CORE_SHADOW_SHADOWED_POLICY_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/core/policy/policy.h"
#include "router/core/shadow/shadow_set.h"

namespace bfio::core {

class ShadowedPolicy final : public Policy {
 public:
  ShadowedPolicy(std::unique_ptr<Policy> acting, std::vector<std::unique_ptr<Policy>> shadows)
      : acting_(std::move(acting)), shadows_(std::move(shadows)) {}

  absl::string_view name() const override { return acting_->name(); }
  int32_t horizon() const override { return acting_->horizon(); }
  void Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) override {
    acting_->Decide(snapshot, plan);
    shadows_.Observe(snapshot, plan);
  }

  bool stopped_early() const override { return acting_->stopped_early(); }
  std::optional<double> gap() const override { return acting_->gap(); }

  const ShadowSet& shadows() const { return shadows_; }
  ShadowSet& shadows() { return shadows_; }

 private:
  std::unique_ptr<Policy> acting_;
  ShadowSet shadows_;
};

// The policy named, with the shadows named; the policy alone when there are none. options.stop ends the
// acting policy's decisions only: regrets compare what shadows would have done in peace. INVALID_ARGUMENT as
// from MakePolicy.
absl::StatusOr<std::unique_ptr<Policy>> MakeShadowedPolicy(absl::string_view name,
                                                           const PolicyOptions& options,
                                                           const std::vector<std::string>& shadows);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SHADOW_SHADOWED_POLICY_H_
