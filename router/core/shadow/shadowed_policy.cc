#include "router/core/shadow/shadowed_policy.h"

namespace bfio::core {

absl::StatusOr<ShadowSet> MakeShadows(const PolicyOptions& options, const std::vector<std::string>& shadows,
                                      StopSignal stop) {
  PolicyOptions unhurried = options;
  unhurried.stop = {};
  unhurried.gap_every = 0;
  std::vector<std::unique_ptr<Policy>> made;
  for (const std::string& shadow : shadows) {
    absl::StatusOr<std::unique_ptr<Policy>> policy = MakePolicy(shadow, unhurried);
    if (!policy.ok()) return policy.status();
    made.push_back(*std::move(policy));
  }
  return ShadowSet(std::move(made), std::move(stop));
}

absl::StatusOr<std::unique_ptr<Policy>> MakeShadowedPolicy(absl::string_view name,
                                                           const PolicyOptions& options,
                                                           const std::vector<std::string>& shadows,
                                                           StopSignal stop) {
  absl::StatusOr<std::unique_ptr<Policy>> acting = MakePolicy(name, options);
  if (!acting.ok() || shadows.empty()) return acting;
  absl::StatusOr<ShadowSet> set = MakeShadows(options, shadows, std::move(stop));
  if (!set.ok()) return set.status();
  return std::make_unique<ShadowedPolicy>(*std::move(acting), *std::move(set));
}

}  // namespace bfio::core
