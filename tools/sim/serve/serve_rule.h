// The interface of rules that place a group's prompts and limit the prompt tokens per step. One interface for
// bfio's rule and those of today's engines, so that runs differ only in the rule. The engines' rules follow
// their descriptions and tests (docs/simulator.md names the sources); each uses its engine's placement.
// Threads: a rule belongs to its run. Deterministic.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_RULE_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_RULE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cost/group_time.h"
#include "router/core/prefill/prefill_planner.h"
#include "tools/sim/serve/serve_group.h"

namespace bfio::sim {

// A rule's input: the group when the plan is applied, assuming that no request ends before.
struct ServeView {
  const std::vector<ServeRank>& ranks;
  const std::vector<ServeRequest>& requests;
  const GroupCost& cost;
  int64_t slots = 0;
  // Number of the step that the plan is for, from 0; the current time, and the estimated start of that step.
  int64_t step = 0;
  double now_s = 0;
  double begins_s = 0;
  core::PrefillTraffic traffic;
  // TTFT objective of every request, in seconds from its arrival; used only by bfio's rule.
  double ttft_objective_s = core::kNoObjective;
};

struct ServePlan {
  struct Binding {
    ServeRequestIndex request = 0;
    int32_t rank = 0;
  };
  std::vector<Binding> bindings;
  // By rank. Not used when level_s is above 0.
  std::vector<RankOrder> orders;
  // If above 0, each rank computes the prompt tokens that fit into a step of this length, given its work when
  // the plan is applied; 0: `orders` apply.
  double level_s = 0;
};

class ServeRule {
 public:
  virtual ~ServeRule() = default;
  // Removes the requests that it binds from `pool`, which is in order of arrival. REQUIRES: `plan` is empty
  // except for one order per rank.
  virtual void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) = 0;
};

struct ServeRuleInfo {
  absl::string_view name;
  // For --help.
  absl::string_view summary;
  // The rule is bfio's: a grid compares it with other rules, but not with other rules of bfio.
  bool ours = false;
};
const std::vector<ServeRuleInfo>& ServeRules();

// `budget`: maximum tokens of a rank's step, decodes included. INVALID_ARGUMENT, listing the rules, for an
// unknown name.
absl::StatusOr<std::unique_ptr<ServeRule>> MakeServeRule(absl::string_view name, int64_t budget);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_RULE_H_
