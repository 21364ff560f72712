// Agents: tasks of several calls. A call is sent when the calls that it depends on have ended.
//
// Purpose: decides the calls of an agent before anything is sent, and which calls may be sent next as others
// end. Pure; used by one thread at a time (the runner guards AgentsUnderWay). Lengths are in tokens, times in
// seconds after the start of the run.
#pragma once

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
    // One call, then `width` in parallel, then one that waits for all of them.
    kForkJoin,
    // `width` calls one after the other, each of which has as its prompt all earlier prompts and outputs: two
    // models that alternate.
    kCycle,
  };
  Kind kind = kSequence;
  uint32_t width = 1;

  uint32_t calls() const { return kind == kForkJoin ? width + 2 : width; }
};

// Parses shapes, which the agents use one after the other: "sequence:4,fork_join:3". INVALID_ARGUMENT names
// what is wrong.
absl::StatusOr<std::vector<AgentShape>> ParseAgents(absl::string_view text);
// The inverse of ParseAgents.
std::string AgentsText(absl::Span<const AgentShape> shapes);

struct AgentPlan {
  struct Call {
    uint32_t prompt_tokens = 0, output_tokens = 0;
    uint32_t stage = 0;
    // Output tokens on the longest path of calls after this one.
    uint32_t remaining_tokens = 0;
    // Number of calls that must end before this one, and indices of the calls that wait for this one.
    uint32_t waits_for = 0;
    std::vector<uint32_t> next;
  };
  // Number of the agent in the run, from 0.
  uint64_t agent = 0;
  // Request index of its first call; the indices of the other calls follow.
  uint64_t first_index = 0;
  // The first call starts the agent.
  std::vector<Call> calls;
};

// The calls take their lengths from the rows from `first` on, which repeat; in a cycle a row's prompt is
// added to the earlier prompts and outputs. REQUIRES: rows is not empty, and all sums are within 32 bits
// (Schedule::Create).
AgentPlan PlanAgent(const AgentShape& shape, absl::Span<const TraceRequest> rows, uint64_t first = 0);

struct AgentResults {
  uint64_t begun = 0;
  // Agents of which all calls completed; agents of which at least one failed or was interrupted.
  uint64_t completed = 0, failed = 0;
  // Calls of failed agents that were not sent because an earlier call failed.
  uint64_t calls_not_sent = 0;
  // Completed agents: from when the first call was due to the end of the last.
  Histogram e2e_s;
};

class AgentsUnderWay {
 public:
  // The first call of an agent is sent. REQUIRES: no agent with this number was begun before.
  void Begin(const AgentPlan& plan, double due_s);

  // A call has ended at `end_s`. Returns the calls that may be sent now. REQUIRES: the call was sent.
  std::vector<uint32_t> OnEnded(const AgentPlan& plan, uint32_t call, bool ok, double end_s);

  // The calls that OnEnded returned are not sent after all, because the agent has failed.
  void NotSent(const AgentPlan& plan);

  size_t size() const { return agents_.size(); }
  const AgentResults& results() const { return results_; }

 private:
  struct Agent {
    double due_s = 0;
    // Calls that each call still waits for, by call.
    std::vector<uint32_t> waits_for;
    // Calls returned by OnEnded that have not ended; calls not yet returned.
    uint32_t out = 0, unsent = 0;
    bool failed = false;
  };

  // One call of the agent has ended; the last one ends the agent.
  void Close(uint64_t index, Agent& agent, double end_s);

  absl::flat_hash_map<uint64_t, Agent> agents_;
  AgentResults results_;
};

}  // namespace bfio::loadgen
