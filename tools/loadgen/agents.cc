#include "tools/loadgen/agents.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace bfio::loadgen {
namespace {

constexpr uint32_t kMostCalls = 1000;

struct Shape {
  absl::string_view name;
  AgentShape::Kind kind;
};
constexpr Shape kShapes[] = {
    {"sequence", AgentShape::kSequence}, {"fork_join", AgentShape::kForkJoin}, {"cycle", AgentShape::kCycle}};

}  // namespace

absl::StatusOr<std::vector<AgentShape>> ParseAgents(absl::string_view text) {
  std::vector<AgentShape> shapes;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> fields =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    const auto* known = std::find_if(std::begin(kShapes), std::end(kShapes),
                                     [&](const Shape& named) { return named.name == fields.first; });
    if (known == std::end(kShapes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not sequence:CALLS, fork_join:BRANCHES or cycle:CALLS"));
    }
    AgentShape shape{.kind = known->kind};
    if (!absl::SimpleAtoi(fields.second, &shape.width) || shape.width < 1 || shape.width > kMostCalls) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "': the number must be within 1..", kMostCalls));
    }
    shapes.push_back(shape);
  }
  return shapes;
}

std::string AgentsText(absl::Span<const AgentShape> shapes) {
  return absl::StrJoin(shapes, ",", [](std::string* out, const AgentShape& shape) {
    const auto* known = std::find_if(std::begin(kShapes), std::end(kShapes),
                                     [&](const Shape& named) { return named.kind == shape.kind; });
    absl::StrAppend(out, known->name, ":", shape.width);
  });
}

AgentPlan PlanAgent(const AgentShape& shape, absl::Span<const TraceRequest> rows, uint64_t first) {
  AgentPlan plan;
  plan.first_index = first;
  const uint32_t n = shape.calls();
  for (uint32_t i = 0; i < n; ++i) {
    const TraceRequest& row = rows[(first + i) % rows.size()];
    plan.calls.push_back({.prompt_tokens = static_cast<uint32_t>(row.prompt_tokens),
                          .output_tokens = static_cast<uint32_t>(row.output_tokens)});
  }
  const auto follows = [&](uint32_t before, uint32_t after) {
    plan.calls[before].next.push_back(after);
    ++plan.calls[after].waits_for;
    plan.calls[after].stage = std::max(plan.calls[after].stage, plan.calls[before].stage + 1);
  };
  for (uint32_t i = 1; i < n; ++i) {
    if (shape.kind == AgentShape::kForkJoin) {
      if (i + 1 == n) break;
      follows(0, i);
      follows(i, n - 1);
      continue;
    }
    follows(i - 1, i);
    if (shape.kind == AgentShape::kCycle)
      plan.calls[i].prompt_tokens += plan.calls[i - 1].prompt_tokens + plan.calls[i - 1].output_tokens;
  }
  for (uint32_t i = n; i-- > 0;) {
    for (const uint32_t next : plan.calls[i].next) {
      plan.calls[i].remaining_tokens = std::max(
          plan.calls[i].remaining_tokens, plan.calls[next].output_tokens + plan.calls[next].remaining_tokens);
    }
  }
  return plan;
}

void AgentsUnderWay::Begin(const AgentPlan& plan, double due_s) {
  Agent& agent = agents_[plan.agent];
  agent.due_s = due_s;
  for (const AgentPlan::Call& call : plan.calls) agent.waits_for.push_back(call.waits_for);
  agent.out = 1;
  agent.unsent = static_cast<uint32_t>(plan.calls.size()) - 1;
  ++results_.begun;
}

std::vector<uint32_t> AgentsUnderWay::OnEnded(const AgentPlan& plan, uint32_t call, bool ok, double end_s) {
  std::vector<uint32_t> ready;
  Agent& agent = agents_[plan.agent];
  if (!ok) agent.failed = true;
  for (const uint32_t next : plan.calls[call].next) {
    if (--agent.waits_for[next] == 0 && !agent.failed) ready.push_back(next);
  }
  agent.out += static_cast<uint32_t>(ready.size());
  agent.unsent -= static_cast<uint32_t>(ready.size());
  Close(plan.agent, agent, end_s);
  return ready;
}

void AgentsUnderWay::NotSent(const AgentPlan& plan) {
  Agent& agent = agents_[plan.agent];
  agent.failed = true;
  ++agent.unsent;
  Close(plan.agent, agent, 0);
}

void AgentsUnderWay::Close(uint64_t index, Agent& agent, double end_s) {
  if (--agent.out > 0) return;
  results_.calls_not_sent += agent.unsent;
  if (agent.failed) {
    ++results_.failed;
  } else {
    ++results_.completed;
    results_.e2e_s.Add(end_s - agent.due_s);
  }
  agents_.erase(index);
}

}  // namespace bfio::loadgen
