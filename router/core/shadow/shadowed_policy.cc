#include "router/core/shadow/shadowed_policy.h"

namespace bfio::core {

absl::StatusOr<std::unique_ptr<Policy>> MakeShadowedPolicy(absl::string_view name,
                                                           const PolicyOptions& options,
                                                           const std::vector<std::string>& shadows) {
  absl::StatusOr<std::unique_ptr<Policy>> acting = MakePolicy(name, options);
  if (!acting.ok() || shadows.empty()) return acting;
  PolicyOptions unhurried = options;
  unhurried.stop = {};
  unhurried.gap_every = 0;
  std::vector<std::unique_ptr<Policy>> made;
  for (const std::string& shadow : shadows) {
    absl::StatusOr<std::unique_ptr<Policy>> policy = MakePolicy(shadow, unhurried);
    if (!policy.ok()) return policy.status();
    made.push_back(*std::move(policy));
  }
  return std::make_unique<ShadowedPolicy>(*std::move(acting), std::move(made));
}

}  // namespace bfio::core
