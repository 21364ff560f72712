#include "tools/loadgen/schedule.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace bfio::loadgen {
namespace {

constexpr uint32_t kDefaultProfileRequests = 1000;
constexpr int64_t kProfileSamples = 100000;

uint64_t TotalRequests(const Options& options, const Trace& trace) {
  if (options.requests > 0) return options.requests;
  if (options.duration_s > 0) return 0;
  const uint64_t requests =
      trace.format == "profile" ? kDefaultProfileRequests : static_cast<uint64_t>(trace.requests.size());
  if (options.agents.empty()) return requests;
  uint64_t calls = 0;
  for (const AgentShape& shape : options.agents) calls += shape.calls();
  return std::max<uint64_t>(1, requests * options.agents.size() / calls);
}

// Calls of the agent that has the most; 1 for single requests.
int64_t MostCalls(const Options& options) {
  int64_t calls = 1;
  for (const AgentShape& shape : options.agents) calls = std::max<int64_t>(calls, shape.calls());
  return calls;
}

// The API's lengths have 32 bits, and a call's may be the sum of all rows of its agent.
absl::Status CheckAgents(const Options& options, const Trace& trace) {
  if (options.agents.empty()) return absl::OkStatus();
  const int64_t most = std::numeric_limits<uint32_t>::max() / MostCalls(options);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const int64_t tokens = trace.requests[i].prompt_tokens + trace.requests[i].output_tokens;
    if (tokens <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat(trace.source, ": row ", i + 1, " has ", tokens,
                                                   " tokens, more than ", most, " for agents ",
                                                   AgentsText(options.agents)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Trace> LoadTrace(const Options& options) {
  if (!options.trace.empty()) return ReadTrace(options.trace);
  const int64_t rows = options.requests * MostCalls(options);
  const int64_t samples = rows > 0 ? std::min(rows, kProfileSamples) : kProfileSamples;
  return SampleProfile(options.profile.empty() ? "conversation" : options.profile, samples, options.seed);
}

Schedule::Schedule(const Options& options, Trace trace)
    : trace_(std::move(trace)),
      agents_(options.agents),
      total_(TotalRequests(options, trace_)),
      duration_s_(options.duration_s),
      max_new_tokens_(options.max_new_tokens) {}

absl::StatusOr<Schedule> Schedule::Create(const Options& options, Trace trace) {
  Schedule schedule(options, std::move(trace));
  if (!options.closed_loop()) {
    const ArrivalOptions arrivals = {.kind = options.arrival,
                                     .rate = options.rate,
                                     .burstiness = options.burstiness,
                                     .time_scale = options.time_scale};
    BFIO_ASSIGN_OR_RETURN(schedule.arrivals_,
                          ArrivalProcess::Create(arrivals, schedule.trace_, options.seed));
  }
  BFIO_RETURN_IF_ERROR(CheckAgents(options, schedule.trace_));
  return schedule;
}

PlannedRequest CallOf(const PlannedRequest& of, uint32_t call) {
  PlannedRequest planned = of;
  planned.call = call;
  planned.index = of.agent->first_index + call;
  planned.prompt_tokens = of.agent->calls[call].prompt_tokens;
  planned.output_tokens = of.agent->calls[call].output_tokens;
  return planned;
}

std::optional<PlannedRequest> Schedule::Next() {
  if (over_ || (total_ > 0 && next_ >= total_)) return std::nullopt;
  PlannedRequest planned;
  planned.due_s = arrivals_.has_value() ? arrivals_->Next() : 0;
  over_ = duration_s_ > 0 && planned.due_s >= duration_s_;
  if (over_) return std::nullopt;
  planned.index = row_;
  if (agents_.empty()) {
    planned.prompt_tokens = static_cast<uint32_t>(Row().prompt_tokens);
    planned.output_tokens = static_cast<uint32_t>(Row().output_tokens);
    if (max_new_tokens_ > 0) {
      planned.hidden_length = planned.output_tokens;
      planned.output_tokens = max_new_tokens_;
    }
    ++row_;
    ++next_;
    return planned;
  }
  const AgentShape& shape = agents_[next_ % agents_.size()];
  auto plan = std::make_shared<AgentPlan>(PlanAgent(shape, trace_.requests, row_));
  plan->agent = next_++;
  row_ += shape.calls();
  planned.agent = std::move(plan);
  return CallOf(planned, 0);
}

}  // namespace bfio::loadgen
