// The source of the simulated requests: a trace that is repeated without end.
//
// Purpose: reveals requests in trace order. Arrival times are those of the trace divided by the load factor;
// every repetition is shifted by the trace's span. Ids count from 1. Ownership: borrows the trace. Threads:
// none.
#ifndef BFIO_TOOLS_SIM_RUN_REQUEST_SOURCE_H_
#define BFIO_TOOLS_SIM_RUN_REQUEST_SOURCE_H_

#include <cstdint>
#include <optional>

#include "common/workload/trace.h"
#include "router/core/model/request.h"

namespace bfio::sim {

struct SimRequest {
  core::RequestId id = 0;
  int64_t prefill_tokens = 0;
  int64_t output_tokens = 0;
  // Simulated seconds. In overload mode set when the request is revealed.
  double arrival_s = 0;
  // Tokens generated before the last preemption, which are now part of the prompt, and when it first started.
  int64_t made = 0;
  std::optional<double> began_s;
  // Steps waited before all its placements so far; empty until it is first placed.
  std::optional<int64_t> waited_steps;
};

class RequestSource {
 public:
  // `limit`: number of requests; 0: without end. REQUIRES: the trace is not empty and load > 0.
  RequestSource(const Trace& trace, double load, int64_t limit);

  // All `limit` requests have been revealed.
  bool Exhausted() const { return limit_ > 0 && revealed_ >= limit_; }

  // The next request, whenever it arrives. REQUIRES: not exhausted.
  SimRequest Next();

  // Arrival time of the next request.
  double NextArrival() const;

  int64_t revealed() const { return revealed_; }

 private:
  const Trace& trace_;
  double load_;
  int64_t limit_;
  // Seconds from the first request of one repetition to the first of the next, before the load factor.
  double span_s_;
  int64_t revealed_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_REQUEST_SOURCE_H_
