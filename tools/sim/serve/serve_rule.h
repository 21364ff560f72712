// How a group's prompts are placed and metered: the rules of today's engines, and bfio's.
//
// Purpose: one interface, so that a run differs in its rule alone. Engines' rules follow their descriptions
// and tests (docs/simulator.md names the sources); each has its engine's placement. Threads: a rule belongs
// to its run. Deterministic.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_RULE_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_RULE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cost/batch_time.h"
#include "router/core/prefill/prefill_planner.h"
#include "tools/sim/serve/serve_group.h"

namespace bfio::sim {

// A rule's input: the group when the plan is applied, without the ends until then.
struct ServeView {
  const std::vector<ServeRank>& ranks;
  const std::vector<ServeRequest>& requests;
  const BatchCost& cost;
  int64_t slots = 0;
  // Number of the step that the plan is for, from 0; the time now, and when that step begins, about.
  int64_t step = 0;
  double now_s = 0;
  double begins_s = 0;
  core::PrefillTraffic traffic;
  // Objective of every request, in seconds from its arrival; only bfio's rule uses it.
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
  // Every rank computes the prompt tokens that end by then, by its work when the plan is applied; 0: by
  // `orders`.
  double level_s = 0;
};

class ServeRule {
 public:
  virtual ~ServeRule() = default;
  // Removes the requests that it binds from `pool`, which is in the order of arrival. REQUIRES: `plan` is
  // empty but for one order per rank.
  virtual void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) = 0;
};

struct ServeRuleInfo {
  absl::string_view name;
  // For --help.
  absl::string_view summary;
  // bfio's, which a grid compares with the others and not with each other.
  bool ours = false;
};
const std::vector<ServeRuleInfo>& ServeRules();

// `budget`: tokens of a rank's step, decodes included. INVALID_ARGUMENT, naming the rules, for an unknown
// name.
absl::StatusOr<std::unique_ptr<ServeRule>> MakeServeRule(absl::string_view name, int64_t budget);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_RULE_H_
