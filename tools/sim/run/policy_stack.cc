#include "tools/sim/run/policy_stack.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "router/core/shadow/shadowed_policy.h"

namespace bfio::sim {

absl::StatusOr<PolicyStack> MakePolicyStack(const SimOptions& options) {
  core::PolicyOptions policy_options;
  policy_options.seed = options.seed;
  policy_options.horizon = options.horizon;
  policy_options.objective = options.objective;
  policy_options.discount = options.discount;
  policy_options.wait_ratio = options.wait_ratio;
  PolicyStack stack;
  BFIO_ASSIGN_OR_RETURN(stack.policy, core::MakePolicy(options.policy, policy_options));
  if (!options.shadow.empty()) {
    BFIO_ASSIGN_OR_RETURN(core::ShadowSet shadows, core::MakeShadows(policy_options, options.shadow));
    auto shadowed = std::make_unique<core::ShadowedPolicy>(std::move(stack.policy), std::move(shadows));
    stack.shadows = &shadowed->mutable_shadows();
    stack.policy = std::move(shadowed);
  }
  return stack;
}

nlohmann::ordered_json ShadowsJson(const core::ShadowSet& shadows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const core::ShadowRegret& regret : shadows.regrets()) {
    const double decisions = regret.decisions == 0 ? 1 : static_cast<double>(regret.decisions);
    json.push_back({{"policy", regret.policy},
                    {"decisions", regret.decisions},
                    {"avoided_decisions", regret.avoided.count()},
                    {"missed_decisions", regret.missed.count()},
                    {"avoided_tokens_mean", regret.avoided.sum() / decisions},
                    {"missed_tokens_mean", regret.missed.sum() / decisions},
                    {"avoided_tokens_p99", regret.avoided.Quantile(0.99)},
                    {"missed_tokens_p99", regret.missed.Quantile(0.99)},
                    {"avoided_ahead_tokens_mean", regret.avoided_ahead / decisions},
                    {"missed_ahead_tokens_mean", regret.missed_ahead / decisions},
                    {"longer_tokens_mean", regret.longer / decisions}});
  }
  return json;
}

std::string ShadowLines(const nlohmann::ordered_json& shadows) {
  std::string lines;
  for (const nlohmann::ordered_json& shadow : shadows) {
    const auto number = [&](const char* key) { return shadow.at(key).get<double>(); };
    absl::StrAppendFormat(
        &lines,
        "  shadow %-15s idle tokens per decision: avoided %.0f (p99 %.0f), missed %.0f (p99 %.0f); over the "
        "horizon avoided %.0f, missed %.0f; its longest load %+.0f\n",
        shadow.at("policy").get<std::string>(), number("avoided_tokens_mean"), number("avoided_tokens_p99"),
        number("missed_tokens_mean"), number("missed_tokens_p99"), number("avoided_ahead_tokens_mean"),
        number("missed_ahead_tokens_mean"), number("longer_tokens_mean"));
  }
  return lines;
}

}  // namespace bfio::sim
