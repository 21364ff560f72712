// Agents: larger requests of several calls, each sent when those before it are done.
//
// Purpose: what an agent's calls are, decided before anything is sent, and which of them come next as others
// end. Pure; one thread at a time (the runner guards AgentsUnderWay). Tokens; seconds after the run's start.
#ifndef BFIO_TOOLS_LOADGEN_AGENTS_H_
#define BFIO_TOOLS_LOADGEN_AGENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/stats/histogram.h"
#include "common/workload/trace.h"

namespace bfio::loadgen {

struct AgentShape {
  enum Kind {
    // `width` calls one after the other.
    kSequence,
    // One call, then `width` side by side, then one that waits for all of them.
    kForkJoin,
  };
  Kind kind = kSequence;
  uint32_t width = 1;

  uint32_t calls() const { return kind == kSequence ? width : width + 2; }
};

// Shapes that agents take in turn: "sequence:4,fork_join:3". INVALID_ARGUMENT names what is wrong.
absl::StatusOr<std::vector<AgentShape>> ParseAgents(absl::string_view text);

struct AgentPlan {
  struct Call {
    uint32_t prompt_tokens = 0, output_tokens = 0;
    uint32_t stage = 0;
    // Output tokens of the longest path of calls after it.
    uint32_t remaining_tokens = 0;
    // How many calls must have ended before it, and those that wait for it, by index.
    uint32_t waits_for = 0;
    std::vector<uint32_t> next;
  };
  // 0, 1, 2, ... of the run.
  uint64_t agent = 0;
  // Request index of its first call; the others follow it.
  uint64_t first_index = 0;
  // The first one begins the agent.
  std::vector<Call> calls;
};

// REQUIRES: rows.size() == shape.calls(), of which the lengths are taken.
AgentPlan PlanAgent(const AgentShape& shape, absl::Span<const TraceRequest> rows);

struct AgentResults {
  uint64_t begun = 0;
  // All calls ended well; at least one did not, or the run was interrupted.
  uint64_t completed = 0, failed = 0;
  // Of failed agents: calls that others should have come before.
  uint64_t calls_not_sent = 0;
  // Of completed agents: from when the first call was due to the end of the last.
  Histogram e2e_s;
};

class AgentsUnderWay {
 public:
  // The first call is sent. REQUIRES: no agent of this number before.
  void Begin(const AgentPlan& plan, double due_s);

  // A call has ended at `end_s`. Returns the calls that may be sent now. REQUIRES: it was sent.
  std::vector<uint32_t> OnEnded(const AgentPlan& plan, uint32_t call, bool ok, double end_s);

  // Calls that OnEnded has returned and that are not sent after all: their agent has failed.
  void NotSent(const AgentPlan& plan);

  size_t size() const { return agents_.size(); }
  const AgentResults& results() const { return results_; }

 private:
  struct Agent {
    double due_s = 0;
    // By call.
    std::vector<uint32_t> waits_for;
    // Handed out and not ended; neither handed out nor ended.
    uint32_t out = 0, unsent = 0;
    bool failed = false;
  };

  // One of its calls is out no more; the last one ends the agent.
  void Close(uint64_t index, Agent& agent, double end_s);

  absl::flat_hash_map<uint64_t, Agent> agents_;
  AgentResults results_;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_AGENTS_H_
