// The policy of a run with its decorators.
//
// Purpose: creates the named policy inside the decorators (shadow policies) that the options ask
// for, and prints the results of the shadows as text and JSON. Units as in router/core/shadow.
#ifndef BFIO_TOOLS_SIM_RUN_POLICY_STACK_H_
#define BFIO_TOOLS_SIM_RUN_POLICY_STACK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "router/core/policy/policy.h"
#include "router/core/shadow/shadow_set.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

struct PolicyStack {
  std::unique_ptr<core::Policy> policy;
  // Parts of `policy`; null when the options do not ask for them.
  core::ShadowSet* shadows = nullptr;
};

// INVALID_ARGUMENT for an unknown policy or a setting that it does not accept.
absl::StatusOr<PolicyStack> MakePolicyStack(const SimOptions& options);

nlohmann::ordered_json ShadowsJson(const core::ShadowSet& shadows);
// One line per shadow, under a line with the names of the columns.
std::string ShadowLines(const nlohmann::ordered_json& shadows);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_POLICY_STACK_H_
