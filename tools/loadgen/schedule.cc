#include "tools/loadgen/schedule.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace bfio::loadgen {
namespace {

constexpr uint32_t kDefaultProfileRequests = 1000;
constexpr int64_t kProfileSamples = 100000;

uint64_t TotalRequests(const Options& options, const Trace& trace) {
  if (options.requests > 0) return options.requests;
  if (options.duration_s > 0) return 0;
  return trace.format == "profile" ? kDefaultProfileRequests : static_cast<uint64_t>(trace.requests.size());
}

}  // namespace

absl::StatusOr<Trace> LoadTrace(const Options& options) {
  if (!options.trace.empty()) return ReadTrace(options.trace);
  const int64_t samples =
      options.requests > 0 ? std::min<int64_t>(options.requests, kProfileSamples) : kProfileSamples;
  return SampleProfile(options.profile.empty() ? "conversation" : options.profile, samples, options.seed);
}

Schedule::Schedule(const Options& options, Trace trace)
    : trace_(std::move(trace)),
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
  return schedule;
}

std::optional<PlannedRequest> Schedule::Next() {
  if (over_ || (total_ > 0 && next_ >= total_)) return std::nullopt;
  PlannedRequest planned;
  planned.due_s = arrivals_.has_value() ? arrivals_->Next() : 0;
  over_ = duration_s_ > 0 && planned.due_s >= duration_s_;
  if (over_) return std::nullopt;
  const TraceRequest& row = trace_.requests[next_ % trace_.requests.size()];
  planned.index = next_++;
  planned.prompt_tokens = static_cast<uint32_t>(row.prompt_tokens);
  planned.output_tokens = static_cast<uint32_t>(row.output_tokens);
  if (max_new_tokens_ > 0) {
    planned.hidden_length = planned.output_tokens;
    planned.output_tokens = max_new_tokens_;
  }
  return planned;
}

}  // namespace bfio::loadgen
