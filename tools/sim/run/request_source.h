// Where the simulated requests come from: a trace, read round and round.
//
// Purpose: reveals requests in trace order. In overload mode as many as keep the waiting pool at its target;
// in arrivals mode when their time has come, the trace's arrival times divided by the load factor and, on
// every further round, moved on by the trace's span. Ids count from 1. Ownership: borrows the trace.
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
  // Simulated seconds. In overload mode set by whoever reveals it.
  double arrival_s = 0;
};

class RequestSource {
 public:
  // REQUIRES: the trace is not empty and load > 0.
  RequestSource(const Trace& trace, double load);

  // The next request, whenever it arrives.
  SimRequest Next();

  // Arrival time of the next request.
  double NextArrival() const;

 private:
  const Trace& trace_;
  double load_;
  // Seconds from the first request of one round to the first of the next, before the load factor.
  double span_s_;
  int64_t revealed_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_REQUEST_SOURCE_H_
