#include "tools/sim/run/workload.h"

#include <algorithm>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

// Random streams derived from the seed.
constexpr uint64_t kRotation = 0, kArrivals = 1;

}  // namespace

double RoundSeconds(const Trace& trace) {
  const double last = trace.requests.back().arrival_s, count = static_cast<double>(trace.requests.size());
  return count > 1 && last > 0 ? last * count / (count - 1) : 1;
}

Trace Rotated(const Trace& trace, uint64_t seed) {
  Trace result = trace;
  if (seed == 1 || trace.requests.empty()) return result;
  const size_t start = Rng(seed).Fork(kRotation).Below(trace.requests.size());
  const double zero = trace.requests[start].arrival_s, round = RoundSeconds(trace);
  std::rotate(result.requests.begin(), result.requests.begin() + static_cast<int64_t>(start),
              result.requests.end());
  if (!trace.has_arrivals) return result;
  for (size_t i = 0; i < result.requests.size(); ++i) {
    result.requests[i].arrival_s += (i + start < result.requests.size() ? 0 : round) - zero;
  }
  return result;
}

Trace WithArrivals(const Trace& trace, uint64_t seed, double burst) {
  Trace result = trace;
  Rng rng = Rng(seed).Fork(kArrivals);
  double now = 0;
  for (TraceRequest& request : result.requests) {
    request.arrival_s = now;
    if (burst <= 1 || rng.Uniform() * burst < 1) now += burst * rng.Exponential();
  }
  result.has_arrivals = true;
  return result;
}

double ArrivalRate(const Trace& trace) {
  return static_cast<double>(trace.requests.size()) / RoundSeconds(trace);
}

double MeanOutputTokens(const Trace& trace) {
  double sum = 0;
  for (const TraceRequest& request : trace.requests) sum += static_cast<double>(request.output_tokens);
  return sum / static_cast<double>(trace.requests.size());
}

double MeanFreeSlots(const Trace& trace, int32_t workers, int32_t batch) {
  return static_cast<double>(workers) * batch / MeanOutputTokens(trace);
}

double FullSlotRequestRate(const Trace& trace, int32_t workers, int32_t batch, const StepCost& cost) {
  double output = 0, load = 0;
  for (const TraceRequest& request : trace.requests) {
    const double o = static_cast<double>(request.output_tokens);
    output += o;
    load += o * (static_cast<double>(request.prompt_tokens) + (o - 1) / 2);
  }
  const double step_s = cost.c_s + cost.tl_s_per_token * batch * load / output;
  return MeanFreeSlots(trace, workers, batch) / step_s;
}

RequestSource::RequestSource(const Trace& trace, double load, int64_t limit)
    : trace_(trace), load_(load), limit_(limit), span_s_(RoundSeconds(trace)) {}

double RequestSource::NextArrival() const {
  const int64_t size = static_cast<int64_t>(trace_.requests.size());
  const double round = static_cast<double>(revealed_ / size);
  return (trace_.requests[revealed_ % size].arrival_s + round * span_s_) / load_;
}

ServeRequest RequestSource::Next() {
  const TraceRequest& row = trace_.requests[revealed_ % static_cast<int64_t>(trace_.requests.size())];
  ServeRequest request{NextArrival(), row.prompt_tokens, row.output_tokens};
  request.id = static_cast<core::RequestId>(++revealed_);
  return request;
}

}  // namespace bfio::sim
