// Calls of agents: their order in the pool, and their parents' deadlines. A request with a parent_id is
// ordered in the pool by its parent (docs/design/agents.md). It ends with DEADLINE_EXCEEDED when the parent's
// deadline passes or can no longer be met. Keeps the parents (router/core/agents). Time and steps are passed
// in. Threads: the decision thread's.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/core/agents/parents.h"
#include "router/requests/request_table.h"

namespace bfio::router {

class AgentCalls {
 public:
  // Sets the call's seniority and deadline from its parent. DEADLINE_EXCEEDED when the parent's deadline has
  // passed or cannot be met; `shortest_step` is a lower bound of the time per token, where one is known.
  absl::Status Check(RequestRecord& record, int64_t step, std::optional<absl::Duration> shortest_step,
                     absl::Time now) const;
  // The call has been accepted.
  void Join(const RequestRecord& record, int64_t step);
  // The call has ended.
  void Leave(RequestRecord& record, int64_t step);

  // Removes the deadlines that have passed; returns the calls of their parents.
  std::vector<core::RequestId> Expire(absl::Time now);
  absl::Time next_deadline() const;

  // The status of a call whose parent's deadline has passed.
  static absl::Status DeadlinePassed();

 private:
  core::Parents parents_;
  // Deadlines of parents, microseconds; may include parents that have ended.
  std::set<std::pair<int64_t, std::string>> deadlines_;
};

}  // namespace bfio::router
