// The interface of engines' rules that place a group's prompts and limit the prompt tokens per step. The
// rules follow their descriptions and tests (docs/research/simulator.md names the sources); each uses its
// engine's placement. bfio's own rules run in the router's core (rank/cluster_dispatcher.h). Threads: a rule
// belongs to its run. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/sim/rank/serve_group.h"

namespace bfio::sim {

// A rule's input: the group when the step begins.
struct ServeView {
  const std::vector<ServeRank>& ranks;
  const std::vector<ServeRequest>& requests;
  int64_t slots = 0;
  // Number of the step, from 0.
  int64_t step = 0;
};

struct ServePlan {
  struct Binding {
    ServeRequestIndex request = 0;
    int32_t rank = 0;
  };
  std::vector<Binding> bindings;
  // By rank.
  std::vector<RankOrder> orders;
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
  // Null: the rule is bfio's.
  std::unique_ptr<ServeRule> (*make)(int64_t budget) = nullptr;
  // A grid compares it with other rules, but not with other rules of bfio.
  bool ours() const { return make == nullptr; }
};
const std::vector<ServeRuleInfo>& ServeRules();

// `budget`: maximum tokens of a rank's step, decodes included. INVALID_ARGUMENT, listing the rules, for an
// unknown name. Null for bfio's own.
absl::StatusOr<std::unique_ptr<ServeRule>> MakeServeRule(absl::string_view name, int64_t budget);

}  // namespace bfio::sim
