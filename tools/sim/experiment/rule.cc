#include "tools/sim/experiment/rule.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::sim {

Rule PaperBfIo(int32_t horizon, double discount) {
  Rule rule = {absl::StrCat("BF-IO H=", horizon), "bf_io", "paper", horizon, discount};
  if (discount != 1) absl::StrAppend(&rule.name, ", weights ", discount, "^h");
  // With H = 0 nothing is foretold.
  if (horizon > 0) rule.lookahead = "oracle";
  return rule;
}

SimOptions WithRule(SimOptions options, const Rule& rule) {
  options.policy = rule.policy;
  if (!rule.objective.empty()) options.objective = rule.objective;
  options.horizon = rule.horizon;
  options.discount = rule.discount;
  options.lookahead = rule.lookahead;
  return options;
}

std::vector<Rule> RulesOr(const ExperimentContext& context, std::vector<Rule> own) {
  if (context.policies.empty()) return own;
  const SimOptions& base = context.base;
  std::vector<Rule> rules;
  for (const std::string& policy : context.policies) {
    rules.push_back({policy, policy, base.objective, base.horizon, base.discount, base.lookahead});
  }
  return rules;
}

}  // namespace bfio::sim
