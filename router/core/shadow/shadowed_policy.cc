#include "router/core/shadow/shadowed_policy.h"

#include "common/base/status_macros.h"

namespace bfio::core {

absl::StatusOr<ShadowSet> MakeShadows(const PolicyOptions& options, const std::vector<std::string>& shadows,
                                      StopSignal stop) {
  PolicyOptions unhurried = options;
  unhurried.stop = {};
  unhurried.gap_every = 0;
  std::vector<std::unique_ptr<Policy>> made;
  for (const std::string& shadow : shadows) {
    BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, MakePolicy(shadow, unhurried));
    made.push_back(std::move(policy));
  }
  return ShadowSet(std::move(made), std::move(stop));
}

absl::StatusOr<std::unique_ptr<Policy>> MakeShadowedPolicy(absl::string_view name,
                                                           const PolicyOptions& options,
                                                           const std::vector<std::string>& shadows,
                                                           StopSignal stop) {
  absl::StatusOr<std::unique_ptr<Policy>> acting = MakePolicy(name, options);
  if (!acting.ok() || shadows.empty()) return acting;
  BFIO_ASSIGN_OR_RETURN(ShadowSet set, MakeShadows(options, shadows, std::move(stop)));
  return std::make_unique<ShadowedPolicy>(*std::move(acting), std::move(set));
}

}  // namespace bfio::core
