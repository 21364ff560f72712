// The policy of a run, with what looks over its shoulder.
//
// Purpose: the policy named, inside the decorators that the options ask for, and words and JSON for what the
// shadows found. Units as in router/core/shadow.
#ifndef BFIO_TOOLS_SIM_RUN_POLICY_STACK_H_
#define BFIO_TOOLS_SIM_RUN_POLICY_STACK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "router/core/policy/policy.h"
#include "router/core/shadow/shadow_set.h"
#include "tools/sim/run/lp_dump.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

struct PolicyStack {
  std::unique_ptr<core::Policy> policy;
  // Parts of `policy`; null when the options ask for none.
  core::ShadowSet* shadows = nullptr;
  const LpDumpPolicy* lp_dump = nullptr;
};

// INVALID_ARGUMENT for an unknown policy or a setting it refuses.
absl::StatusOr<PolicyStack> MakePolicyStack(const SimOptions& options);

nlohmann::ordered_json ShadowsJson(const core::ShadowSet& shadows);
// A line for each, the columns named.
std::string ShadowLines(const nlohmann::ordered_json& shadows);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_POLICY_STACK_H_
