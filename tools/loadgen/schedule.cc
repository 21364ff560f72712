#include "tools/loadgen/schedule.h"

#include <algorithm>

namespace bfio::loadgen {
namespace {

constexpr uint32_t kDefaultProfileRequests = 1000;
constexpr int64_t kProfileSamples = 100000;

uint64_t TotalRequests(const Options& options, const Trace& trace) {
  if (options.requests > 0) return options.requests;
  if (options.duration_s > 0) return 0;
  return trace.format == "profile" ? kDefaultProfileRequests : trace.requests.size();
}

}  // namespace

absl::StatusOr<Trace> LoadTrace(const Options& options) {
  if (!options.trace.empty()) return ReadTrace(options.trace);
  const int64_t samples =
      options.requests > 0 ? std::min<int64_t>(options.requests, kProfileSamples) : kProfileSamples;
  return SampleProfile(options.profile.empty() ? "conversation" : options.profile, samples, options.seed);
}

absl::StatusOr<Schedule> Schedule::Create(const Options& options, Trace trace) {
  std::optional<ArrivalProcess> arrivals;
  if (!options.closed_loop()) {
    const ArrivalOptions arrival_options = {.kind = options.arrival,
                                            .rate = options.rate,
                                            .burstiness = options.burstiness,
                                            .time_scale = options.time_scale};
    absl::StatusOr<ArrivalProcess> process = ArrivalProcess::Create(arrival_options, trace, options.seed);
    if (!process.ok()) return process.status();
    arrivals = *std::move(process);
  }
  const uint64_t total = TotalRequests(options, trace);
  return Schedule(std::move(trace), std::move(arrivals), total, options.duration_s);
}

std::optional<PlannedRequest> Schedule::Next() {
  if (over_ || (total_ > 0 && next_ >= total_)) return std::nullopt;
  PlannedRequest planned;
  planned.due_s = arrivals_.has_value() ? arrivals_->Next() : 0;
  if (duration_s_ > 0 && planned.due_s >= duration_s_) {
    over_ = true;
    return std::nullopt;
  }
  const TraceRequest& row = trace_.requests[next_ % trace_.requests.size()];
  planned.index = next_++;
  planned.prompt_tokens = static_cast<uint32_t>(row.prompt_tokens);
  planned.output_tokens = static_cast<uint32_t>(row.output_tokens);
  return planned;
}

}  // namespace bfio::loadgen
