// Lengths that are asked of a group of engines, and how many such requests a second it can serve.
//
// Purpose: one definition of load for every rule: a share of what an ideally levelled group could serve, so
// that no rule's own capacity sets the scale. Pure; any thread. Tokens, seconds, requests per second.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_WORKLOAD_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_WORKLOAD_H_

#include <cstdint>

#include "common/cost/batch_time.h"
#include "common/workload/trace.h"

namespace bfio::sim {

// Means over a workload's requests of prompt s and output o.
struct LengthMoments {
  double prompt = 0;
  double output = 0;
  double prompt_squared = 0;
  // E[(o - 1) s + (o - 1)^2 / 2]: cached tokens that a request's decodes read in all.
  double decode_context = 0;
};
LengthMoments MomentsOf(const Trace& trace);

struct ServeCapacity {
  // lambda*.
  double requests_per_s = 0;
  // Requests that decode on each rank there, and the step then.
  int64_t decodes = 0;
  double step_s = 0;
};

// lambda* = max over N <= slots of G mu / T(N): N decodes per rank end at mu = N / (E[o] - 1) a step, and so
// many prompts are computed in it, evenly, T = C + A max(0, N + mu E[s] - B0) + K1 mu E[s^2] / 2 + K2 mu
// decode_context; a step holds at most 2,048 rows, unless one decode's share of prompts alone is more.
// REQUIRES: moments.output > 1.
ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_WORKLOAD_H_
