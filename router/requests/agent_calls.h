// Calls of agents: the order that their parents give them, and their parents' deadlines.
//
// Purpose: a request with a parent_id takes its place in the pool by its parent (docs/agents.md), and ends
// with DEADLINE_EXCEEDED when the parent's deadline passes or can no longer be met. Keeps the parents
// (router/core/agents). Time and steps are handed in. Threads: the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_AGENT_CALLS_H_
#define BFIO_ROUTER_REQUESTS_AGENT_CALLS_H_

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

// Whose calls go first among agents' (router/core/agents).
enum class AgentOrder {
  // Each call counts as its own parent.
  kOff,
  // The oldest parent's.
  kAge,
  // The parent's that is due first.
  kDue,
};

class AgentCalls {
 public:
  explicit AgentCalls(AgentOrder order) : order_(order) {}

  // Gives the call what its parent has: seniority and deadline. DEADLINE_EXCEEDED where the parent comes too
  // late; `shortest_step` is the least time that a token takes, where that is known.
  absl::Status Look(RequestRecord& record, int64_t step, std::optional<absl::Duration> shortest_step,
                    absl::Time now) const;
  // The call has been accepted.
  void Join(const RequestRecord& record, int64_t step);
  // It has ended.
  void Leave(RequestRecord& record, int64_t step);

  // Calls whose parents' deadline has passed.
  std::vector<core::RequestId> Expire(absl::Time now);
  absl::Time next_deadline() const;

  // What a call gets that its parent's deadline has ended.
  static absl::Status DeadlinePassed();

 private:
  const AgentOrder order_;
  core::Parents parents_;
  // Parents' deadlines to come, microseconds; some may be of parents that have ended.
  std::set<std::pair<int64_t, std::string>> deadlines_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_AGENT_CALLS_H_
