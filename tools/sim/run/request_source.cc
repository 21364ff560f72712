#include "tools/sim/run/request_source.h"

#include "tools/sim/run/workload.h"

namespace bfio::sim {

RequestSource::RequestSource(const Trace& trace, double load, int64_t limit)
    : trace_(trace), load_(load), limit_(limit), span_s_(RoundSeconds(trace)) {}

double RequestSource::NextArrival() const {
  const int64_t size = static_cast<int64_t>(trace_.requests.size());
  const double round = static_cast<double>(revealed_ / size);
  return (trace_.requests[revealed_ % size].arrival_s + round * span_s_) / load_;
}

SimRequest RequestSource::Next() {
  const TraceRequest& row = trace_.requests[revealed_ % static_cast<int64_t>(trace_.requests.size())];
  SimRequest request;
  request.arrival_s = NextArrival();
  request.id = static_cast<core::RequestId>(++revealed_);
  request.prefill_tokens = row.prompt_tokens;
  request.output_tokens = row.output_tokens;
  return request;
}

}  // namespace bfio::sim
