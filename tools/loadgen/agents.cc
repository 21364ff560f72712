#include "tools/loadgen/agents.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace bfio::loadgen {
namespace {

constexpr uint32_t kMostCalls = 1000;
// The API's lengths have 32 bits.
constexpr int64_t kMostTokens = std::numeric_limits<uint32_t>::max();

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

absl::StatusOr<AgentPlan> PlanAgent(const AgentShape& shape, absl::Span<const TraceRequest> rows,
                                    uint64_t first) {
  AgentPlan plan;
  plan.first_index = first;
  const uint32_t n = shape.calls();
  plan.calls.resize(n);
  const auto row_of = [&](uint32_t call) { return (first + call) % rows.size(); };
  const auto too_many = [&](uint32_t call, const char* what, int64_t tokens) {
    return absl::OutOfRangeError(absl::StrCat("row ", row_of(call) + 1, ", call ", call + 1, " of an agent ",
                                              AgentsText({shape}), ": ", what, " ", tokens,
                                              " tokens, more than ", kMostTokens));
  };
  for (uint32_t i = 0; i < n; ++i) {
    plan.calls[i].prompt_tokens = static_cast<uint32_t>(rows[row_of(i)].prompt_tokens);
    plan.calls[i].output_tokens = static_cast<uint32_t>(rows[row_of(i)].output_tokens);
  }
  const auto follows = [&](uint32_t before, uint32_t after) {
    plan.calls[before].next.push_back(after);
    ++plan.calls[after].waits_for;
    plan.calls[after].stage = std::max(plan.calls[after].stage, plan.calls[before].stage + 1);
  };
  if (shape.kind != AgentShape::kForkJoin) {
    for (uint32_t i = 1; i < n; ++i) {
      follows(i - 1, i);
      if (shape.kind != AgentShape::kCycle) continue;
      const int64_t prompt = int64_t{plan.calls[i].prompt_tokens} + plan.calls[i - 1].prompt_tokens +
                             plan.calls[i - 1].output_tokens;
      if (prompt > kMostTokens) return too_many(i, "its prompt has", prompt);
      plan.calls[i].prompt_tokens = static_cast<uint32_t>(prompt);
    }
  } else {
    for (uint32_t i = 1; i + 1 < n; ++i) follows(0, i);
    for (uint32_t i = 1; i + 1 < n; ++i) follows(i, n - 1);
  }
  for (uint32_t i = n; i-- > 0;) {
    for (const uint32_t next : plan.calls[i].next) {
      const int64_t remaining = int64_t{plan.calls[next].output_tokens} + plan.calls[next].remaining_tokens;
      if (remaining > kMostTokens) return too_many(i, "the calls after it generate", remaining);
      plan.calls[i].remaining_tokens =
          std::max(plan.calls[i].remaining_tokens, static_cast<uint32_t>(remaining));
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
